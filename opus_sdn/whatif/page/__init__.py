"""Plots and pages: what a study, a figure or a bill looks like in a browser without a network."""
