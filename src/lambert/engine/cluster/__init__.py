"""Which processes there are, how they meet, notice that one is lost, and are started anew."""
