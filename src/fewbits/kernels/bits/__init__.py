"""What the definition and every backend share: layout of bits, packing, the options of a conversion."""
