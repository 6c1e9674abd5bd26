"""What the notebooks draw and check: a module per stage, and one call per picture.

A function draws its picture or table, and asserts what the text next to it states.
"""
