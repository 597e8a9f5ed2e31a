"""Nodes: the links of which a dataset is a chain.

Each node is small and frozen, and answers ``take`` by asking the node it stands on for other
indices, so an order costs no memory and no start-up time, and any position of it is reached at
once.
"""
