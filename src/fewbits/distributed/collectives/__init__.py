"""Collectives of :mod:`torch.distributed` whose messages are narrow."""
