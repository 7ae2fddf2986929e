"""Making models smaller: one verb, one room per technique."""
