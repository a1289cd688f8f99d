"""One vocabulary of operations on plain tensors, forward and backward, from which blocks are written once.

No operation knows autograd, modules or settings. `reference.Ops` computes all of them with torch on any device and in
any dtype, and is the oracle of the other back-ends, which inherit from it and replace what they have a faster way for.
"""
