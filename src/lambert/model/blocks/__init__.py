"""The layers an encoder can be built of."""
