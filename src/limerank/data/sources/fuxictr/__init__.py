"""Inputs of FuxiCTR and LongCTR."""
