"""Measuring: one honest duration (`clock`), many candidates and few launches (`race`), and who won (`pick`)."""
