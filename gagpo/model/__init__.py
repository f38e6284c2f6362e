"""Models: the forward pass and what it needs. Engines and learning stand on this package.

=================== ============================================================================================
``loading``         load and save a model and its tokenizer, in a form that is checked
``pretrained``      names of models: folders, hub names, starters, GGUF files
``starters``        the small models that come with the package
``gguf/``           conversion of GGUF files
``attention_check`` whether a model's log-probabilities survive flat attention
``flat/``           the forward pass over a flat token axis: attention, packed rows and trees, slot cache, CUDA graphs
``adapters``        LoRA: inject, merge, save, load
``exact_merge``     an adapter that ships with the package, merged with the same bits on every machine
``weights``         the weights as a stream of named tensors
``sharding``        weights sharded over ranks (FSDP2)
``dtypes``          number formats by name
``shape``           sizes of a model, from its config
``spans``           named spans of time, for profiles
=================== ============================================================================================
"""
