"""The record batch, magic 2: checked, stamped, walked, built; its codecs and hashes."""
