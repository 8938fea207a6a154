"""Moves a cluster's tree to another store: `move` has the steps, `copies` the copy, `marks` the marks in both."""
