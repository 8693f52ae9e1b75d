"""Decoders without a head: what embedding models are."""
