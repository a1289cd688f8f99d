"""What stands beside the house: each folder is a wing, which may use every room of the house. No room of the house
imports a wing, and no wing imports another."""
