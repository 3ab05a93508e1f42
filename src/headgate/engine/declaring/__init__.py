"""Declaring: what a program and its store declare, and the migrations from one to the other."""
