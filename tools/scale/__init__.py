"""How the cost of each public operation grows with what is there already."""
