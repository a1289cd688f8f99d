"""Packages on which no other package depends, called wings. A wing may import every package outside this folder. No
package outside this folder imports a wing, and no wing imports another."""
