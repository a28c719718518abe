"""What the network of a cluster costs and draws: bills of material and their ratios."""
