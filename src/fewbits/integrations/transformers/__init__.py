"""Hugging Face's models and Trainer: packed weights loaded and run, narrow attention and caches, recipes.

Importing it registers fewbits with transformers: ``from_pretrained`` then reads folders that ``fewbits cast``
wrote.
"""

from fewbits.errors import MissingDependencyError

try:
    import transformers as _transformers  # noqa: F401  # said here, once for all modules of this folder
except ImportError as _error:
    raise MissingDependencyError(
        "models of Hugging Face need the package transformers; install it by pip install 'fewbits[ecosystem]'"
    ) from _error

from fewbits.integrations.transformers.attention import narrow_attention
from fewbits.integrations.transformers.cache import NarrowCache
from fewbits.integrations.transformers.quantizer import FewbitsConfig
from fewbits.integrations.transformers.trainer import RecipeTrainer

__all__ = ["FewbitsConfig", "NarrowCache", "RecipeTrainer", "narrow_attention"]
