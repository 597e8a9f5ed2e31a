"""Forebay's reader: training data from immutable shards, in any order, from any position."""
