"""Engines outside this process: reached, begun where they are to be, waited for, and ended."""
