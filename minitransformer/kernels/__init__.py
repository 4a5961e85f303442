"""The loops of the tiers "numba" and "micro": they compute what the definitions do. The tier "numpy" imports none of them.

attention.py, attention_*.py         softmax attention in tiles, dense or to the pairs of a pattern
few_queries.py, one_query.py         attention of a few queries, and of one new token
chosen_keys.py, edges.py             attention where each query has keys of its own, and along the edges of a graph
chunks.py, scan.py, decays.py, step.py                          memories: a text in chunks, position by position, one step
sweep.py, sweep_parts.py, in_turn.py, passes.py                 one memory through a text
convolution.py                       filters along the tokens
matmul.py, pointwise.py, norms_and_loss.py, few_rows.py         the other layers, the loss and AdamW
one_token.py, one_token_*.py         one new token through all blocks of a model
tiles.py, micro_kernel.py, memory_kernel.py, eights.py, exp2.py     what these loops are made of
compiling.py, less_compiling.py, threads.py                     how they are compiled, and shared among the cores
staircase.py, compiled_stairs.py     the stairs of chapter 17
"""
