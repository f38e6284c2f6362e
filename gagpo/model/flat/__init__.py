"""The forward pass over a flat token axis, where rows lie one after the other without padding.

``attention`` registers the attention function and calls the model, ``packed`` lays out rows and prefix trees for
training, ``slots`` is the cache of growing sequences for sampling, ``kernels`` chooses the kernel, and ``graphs``
records decoding steps on a GPU.
"""
