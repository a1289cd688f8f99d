"""Raw text to token shards: readers, sentence splitting, tokenizer and pipeline. A corpus is prepared once."""
