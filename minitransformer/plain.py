"""The whole transformer on one page: a language model and its gradient, in NumPy, for one text. Everything else starts here.

It is `LanguageModel()` with nothing to choose: sinusoids, pre-norm blocks, dense causal attention, GELU, tied embeddings. It
takes the same parameters and gives the same numbers, only slower. Nothing is checked, and each way back is a function in a
function, under the line that it undoes. (In the rest of the book a pullback is a tuple whose parts one can look at.)

    embedding      models/embed.py, chapter 03      attention      attention/multi_head.py, chapter 02
    layer norm     functional.py, chapter 03        feed-forward   models/feed_forward.py, chapter 03
"""

import math

import numpy as np


def linear(x, W, b):
    """y = x W + b; back: dy to (dx, dW, db)."""
    return x @ W + b, lambda dy: (dy @ W.T, x.T @ dy, dy.sum(0))


def layer_norm(x, p, eps=1e-5):
    """y = γ z + β with z = (x − μ)/σ for each row; back: dy to (dx, dp)."""
    sigma = np.sqrt(x.var(-1, keepdims=True) + eps)
    z = (x - x.mean(-1, keepdims=True)) / sigma

    def back(dy):
        dz = dy * p.gamma  # y = γ z + β
        dx = (dz - dz.mean(-1, keepdims=True) - z * (dz * z).mean(-1, keepdims=True)) / sigma  # z = (x − μ)/σ
        return dx, p._replace(gamma=(dy * z).sum(0), beta=dy.sum(0))

    return p.gamma * z + p.beta, back


def softmax(S):
    """A_ij = exp S_ij / Σ_l exp S_il; back: dA to dS."""
    P = np.exp(S - S.max(-1, keepdims=True))
    A = P / P.sum(-1, keepdims=True)
    return A, lambda dA: A * (dA - (dA * A).sum(-1, keepdims=True))


def attention(x, p, H):
    """Causal multi-head self-attention, x (n, D); back: dy to (dx, dp)."""
    n, D = x.shape
    scale = 1 / math.sqrt(D // H)

    def split(X):  # (n, D) to (H, n, d)
        return X.reshape(n, H, D // H).swapaxes(0, 1)

    def merge(X):  # and back
        return X.swapaxes(0, 1).reshape(n, D)

    (q, q_back), (k, k_back), (v, v_back) = (
        linear(x, W, b) for W, b in ((p.W_q, p.b_q), (p.W_k, p.b_k), (p.W_v, p.b_v))
    )
    Q, K, V = split(q), split(k), split(v)
    S = np.where(np.tri(n, dtype=bool), scale * Q @ K.mT, -np.inf)
    A, A_back = softmax(S)
    y, y_back = linear(merge(A @ V), p.W_o, p.b_o)

    def back(dy):
        dheads, dW_o, db_o = y_back(dy)  # y = [A V] W_o + b_o
        dA, dV = split(dheads) @ V.mT, A.mT @ split(dheads)  # A V
        dS = A_back(dA)  # A = softmax(S)
        dQ, dK = scale * dS @ K, scale * dS.mT @ Q  # S = scale Q Kᵀ
        dx_v, dW_v, db_v = v_back(merge(dV))  # v = x W_v + b_v
        dx_k, dW_k, db_k = k_back(merge(dK))  # k = x W_k + b_k
        dx_q, dW_q, db_q = q_back(merge(dQ))  # q = x W_q + b_q
        weights = {"W_q": dW_q, "W_k": dW_k, "W_v": dW_v, "W_o": dW_o}
        return dx_q + dx_k + dx_v, p._replace(**weights, b_q=db_q, b_k=db_k, b_v=db_v, b_o=db_o)

    return y, back


def gelu(u):
    """u/2 · (1 + tanh t), t = √(2/π) (u + 0.044715 u³); back: dy to du."""
    c = math.sqrt(2 / math.pi)
    tanh = np.tanh(c * (u + 0.044715 * u**3))
    return u / 2 * (1 + tanh), lambda dy: dy * ((1 + tanh) / 2 + u / 2 * (1 - tanh**2) * c * (1 + 3 * 0.044715 * u**2))


def feed_forward(x, p):
    """y = GELU(x W₁ + b₁) W₂ + b₂; back: dy to (dx, dp)."""
    u, u_back = linear(x, p.W_1, p.b_1)
    f, f_back = gelu(u)
    y, y_back = linear(f, p.W_2, p.b_2)

    def back(dy):
        df, dW_2, db_2 = y_back(dy)  # y = f W₂ + b₂
        dx, dW_1, db_1 = u_back(f_back(df))  # u = x W₁ + b₁, f = GELU(u)
        return dx, p._replace(W_1=dW_1, b_1=db_1, W_2=dW_2, b_2=db_2)

    return y, back


def block(x, p, H):
    """x + attention(norm(x)), then the same with the feed-forward network; back: dy to (dx, dp)."""
    z_1, z_1_back = layer_norm(x, p.attention_norm)
    a, a_back = attention(z_1, p.attention, H)
    r = x + a
    z_2, z_2_back = layer_norm(r, p.ffn_norm)
    f, f_back = feed_forward(z_2, p.ffn)

    def back(dy):
        dz_2, dffn = f_back(dy)  # y = r + f
        dr, dffn_norm = z_2_back(dz_2)
        dr = dy + dr
        dz_1, dattention = a_back(dr)  # r = x + a
        dx, dattention_norm = z_1_back(dz_1)
        grads = {"attention_norm": dattention_norm, "attention": dattention, "ffn_norm": dffn_norm, "ffn": dffn}
        return dr + dx, p._replace(**grads)

    return r + f, back


def language_model(params, tokens, H):
    """Logits of the next token at each of n tokens, (n, vocabulary); back: dlogits to the gradient of all parameters."""
    D, E = params.E.shape[1], params.E
    angles = np.arange(len(tokens))[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1, D)
    x, backs = (math.sqrt(D) * E[tokens] + positions).astype(E.dtype), []
    for p in params.stack.blocks:
        x, block_back = block(x, p, H)
        backs.append(block_back)
    z, z_back = layer_norm(x, params.stack.norm)

    def back(dlogits):
        dx, dnorm = z_back(dlogits @ E)  # logits = z Eᵀ
        dblocks = []
        for block_back in reversed(backs):
            dx, dp = block_back(dx)
            dblocks.append(dp)
        dE = dlogits.T @ z
        np.add.at(dE, tokens, math.sqrt(D) * dx)  # x = √D E[tokens] + positions
        return params._replace(E=dE, stack=params.stack._replace(blocks=tuple(dblocks[::-1]), norm=dnorm))

    return z @ E.T, back


def loss(params, tokens, H):
    """Mean of −ln p(next token), in nats, of n + 1 tokens; and the gradient of all parameters."""
    logits, back = language_model(params, tokens[:-1], H)
    p, _ = softmax(logits)
    at = np.arange(len(p)), tokens[1:]
    dlogits = p.copy()
    dlogits[at] -= 1  # −ln p = −logit + ln Σ exp
    return -np.log(p[at]).mean(), back(dlogits / len(p))


def generate(params, tokens, steps, H):
    """The most likely token, again and again, each time from the whole text."""
    for _ in range(steps):
        tokens = np.append(tokens, language_model(params, tokens, H)[0][-1].argmax())
    return tokens
