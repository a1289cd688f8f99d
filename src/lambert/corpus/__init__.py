"""Raw text to token shards, once: readers, sentences, tokenizer, pipeline."""
