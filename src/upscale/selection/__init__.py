"""Selection: from importance to the channels each layer keeps."""
