"""Print the formula index as Markdown: every paper's equation and the YAML that expresses it.

python .ci/formulas_page.py > PAGE
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field

import yaml

from gagpo.algorithms import PRESETS, Cells

HEAD = """# Formulas

Every paper's equation beside the cells that express it, made from the code by `python .ci/formulas_page.py`. A block
stands in a run's YAML as it is; `algorithm: NAME` is short for a row's. Options, and where a default is not the
paper's: [the algorithms](algorithms.md).

`R` is an episode's sum of rewards less its penalties, `y` its success as 0 or 1, `G_t` the discounted sum from turn t
on; mean, std (sample), sigma_0 (population) and p = mean y are those of the task group. `r = pi/mu` is a token's ratio,
mu what sampled; `r_turn` and `r_seq` are the exponentials of the mean of `log r` over a turn or a sequence. `sg` takes
no gradient. Unless an equation says otherwise, J is the mean over tokens of `PPO(r, A) = min(r A, clip(r, .8, 1.2) A)`.
A row with `kl` takes `coefficient * (exp(-x) + x - 1)` off, `x = log pi - log pi_ref`; one with `entropy` adds so much
of the policy's.
"""


@dataclass(frozen=True)
class Formula:
    """A method: its paper (an arXiv number, or ""), its equation, and its cells where it is no row of the table."""

    title: str
    paper: str
    equation: str
    cells: Cells = field(default_factory=dict)


ROWS: dict[str, Formula] = {
    "gagpo": Formula(
        "GAGPO",
        "2605.13217",
        "V(s) = mean of G over all visits of s in the task group\n"
        "delta_t = r_t + gamma V(s_t+1) - V(s_t);   a_t = delta_t + gamma lam a_t+1\n"
        "A_t = (a_t - mean)/(std + 1e-6);   J = mean over turns of PPO(r_turn, A_t)",
    ),
    "grpo": Formula(
        "GRPO", "2402.03300", "A = (R - mean)/(std + 1e-6);   J = mean over sequences of mean over tokens of PPO(r, A)"
    ),
    "dr_grpo": Formula(
        "Dr.GRPO", "2503.20783", "A = R - mean;   J = sum over tokens of PPO(r, A) / (sequences * length)"
    ),
    "dapo": Formula(
        "DAPO",
        "2503.14476",
        "groups with equal R are sampled anew;   R' = R + min(max(-(n - (limit - buffer))/buffer, -1), 0), n tokens\n"
        "A = (R' - mean)/(std + 1e-6);   J = mean of min(r A, clip(r, .8, 1.28) A), at least 10 A for A < 0",
    ),
    "gmpo": Formula(
        "GMPO",
        "2507.20673",
        "J = mean over sequences of A exp(mean l'),   l' = min(log r, .4) for A > 0, max(log r, -.4) for A < 0",
    ),
    "gspo": Formula("GSPO", "2507.18071", "J = mean over sequences of min(r_seq A, clip(r_seq, 1 - 3e-4, 1 + 4e-4) A)"),
    "gspo_token": Formula(
        "GSPO-token", "2507.18071", "as GSPO with r_seq,k = sg[r_seq] pi_k/sg[pi_k] at each token k of the sequence"
    ),
    "sapo": Formula(
        "SAPO",
        "2511.20347",
        "J = mean over sequences of mean over tokens of 4/tau sigmoid(tau (r - 1)) A\n"
        "tau = 1 for A > 0, 1.05 for A < 0",
    ),
    "cispo": Formula("CISPO", "2506.13585", "J = mean of sg[min(r, 1 + high)] A log pi"),
    "dppo": Formula(
        "DPPO, total variation",
        "2602.04879",
        "A = R - mean;   J = sum of 1[kept] sg[min(r, 20)] A log pi / (sequences * length)\n"
        "dropped: A > 0 and pi - mu > .15, or A < 0 and pi - mu < -.15",
    ),
    "apmpo": Formula(
        "APMPO",
        "2605.04066",
        "A = (y - mean)/(sigma_0 + 1e-6);   J = mean over sequences of A (mean c^q)^(1/q)\n"
        "c = min(r, 1 + eps) for A > 0, max(r, .8) for A < 0\n"
        "q = exp(-.8 mu);   eps = .2 + .2 tanh(mu/(sigma_0 + 1e-6)),   mu and sigma_0 of the batch's y",
    ),
    "agpo_adaptive": Formula(
        "AGPO, adaptive",
        "2605.20722",
        "A = (R - mean)/max(dispersion, 1e-8)\n"
        "J = mean over sequences of mean over tokens of min(r A, clip(r, 1 - eps, 1 + eps) A)\n"
        "of a probe: u = sigma + VE;   T = clamp(T_base (1 + .15 (u - usual u)/(usual u + 1e-8)), .5, 1.5)\n"
        "eps = clamp(.2 clamp(H/H_ref, .5, 1.5) (1 + .1 VE)/(1 + sigma + .5 KL), .05, .4)",
    ),
    "agpo_asymmetric": Formula(
        "AGPO, asymmetric",
        "2605.05826",
        "A = (z - mean)/sqrt(sigma_0^2 + delta^2) + 1[z < 0] bonus,   z = 2 y - 1\n"
        "J = mean over sequences of mean over tokens of PPO(r, A)",
    ),
    "rloo": Formula("RLOO", "2402.14740", "A = R - mean of the group's other episodes"),
    "rejection_sampling": Formula(
        "Rejection sampling, ReST-EM", "2312.06585", "J = mean over tokens of 1[y = 1] log pi"
    ),
    "max_rl": Formula("MaxRL", "2602.02710", "A = (y - p)/p,   0 where p = 0"),
    "reinforce_plus_plus": Formula(
        "REINFORCE++",
        "2501.03262",
        "A_k = (G_k - mean)/sqrt(var + 1e-8),   G_k the return from token k on, over the batch",
    ),
    "reinforce_baseline": Formula(
        "REINFORCE++-baseline",
        "2501.03262",
        "a = R - mean;   A = (a - mean a)/sqrt(var a + 1e-8) over the batch's tokens",
    ),
    "gigpo": Formula(
        "GiGPO",
        "2505.10978",
        "A_t = (R - mean)/(std + 1e-6) + step_weight (G_t - mean_s)/(std_s + 1e-6)\n"
        "mean_s and std_s over turns in state s;   J = mean of PPO(r, A), at least 3 A for A < 0",
    ),
    "sampo": Formula(
        "SAMPO",
        "2602.21534",
        "groups with equal R are sampled anew;   A_t = A^E + step_weight A^S_t as GiGPO\n"
        "J = mean over tokens of min(r_seq A_t, clip(r_seq, 1 - 3e-4, 1 + 4e-4) A_t)",
    ),
    "g2po": Formula(
        "G2PO",
        "2606.22995",
        "V(s) = mean of gamma^n R over all visits of s, n turns from the end;   V after an end: R where y = 1, else 0\n"
        "A_t = norm of R in the group + norm of V(s') among turns in s + norm of V(s') - V(s) in the group\n"
        "norm x = (x - mean)/(std + 1e-6),   an invalid action's penalty off V(s') in the second",
    ),
    "empg": Formula(
        "EMPG",
        "2509.09265",
        "A_t = (R - mean)/(std + 1e-6) g(H_t) + .1 f(H_t+1),   less its mean over the batch\n"
        "g = exp(-H)/mean exp(-H),   f = exp(-H),   H_t the mean entropy of a turn's tokens, min-max to [0, 1]",
    ),
    "optimal_token_baseline": Formula(
        "Optimal token baseline",
        "2602.07078",
        "A_k = G_k - sum W_k G_k/(sum W_k + 1e-8) over the group's episodes,   k the token in the episode\n"
        "W_k = sum over j <= k of 1 - 2 pi_j + sum over a of pi_j(a)^2",
    ),
    "hgpo": Formula(
        "HGPO",
        "2602.22817",
        "A_c = (G - mean)/(sigma_0 + 1e-6) over turns whose last c + 1 states are equal, c = 0..2\n"
        "A = sum of (c + 1) A_c / sum of (c + 1) over the depths with other members",
    ),
    "graphgpo": Formula(
        "GraphGPO",
        "2605.26684",
        "r_G(u -> v) = 10 gamma^d(v, success) on the group's graph of states\n"
        "A_t = norm of r_G among transitions from u + norm of R in the group,   norm x = (x - mean)/(std + 1e-6)",
    ),
    "milegpo": Formula(
        "MileGPO",
        "2608.19803",
        "r_M = r_G + 10 lam (delta+ - delta-);   delta± = max(w± Phi±(s') - w± Phi±(s), 0);   "
        "Phi±(s) = max_v S±(v) omega^d(s, v)\n"
        "A_t = A_G + eta (A_M - A_G) + norm of R,   A_G and A_M the norms of r_G and r_M among transitions from u",
    ),
    "graph_value": Formula(
        "Graph value",
        "",
        "V(s) = mean over all visits of s of r + gamma V(s'), solved;   a_t = r_t + gamma V(s_t+1) - V(s_t)\n"
        "A_t = (a_t - mean)/(std + 1e-6);   J = mean over turns of PPO(r_turn, A_t)",
    ),
    "graph_sum": Formula(
        "Sum of graph credits",
        "",
        "A = A_G/std(A_G) + A_V/std(A_V) over the batch,   A_G of GraphGPO, A_V of graph value\n"
        "J = mean over turns of PPO(r_turn, A_t)",
    ),
    "empirical_bayes": Formula(
        "Empirical Bayes",
        "",
        "V = x w + u_task + u_state, all without the episode itself;   a: generalised advantages on V, lam = .5\n"
        "A = (a - mean)/(std + 1e-6) over the batch;   J = mean over turns of PPO(r_turn, A_t)",
    ),
    "ppo_token": Formula(
        "PPO",
        "1707.06347",
        "delta_k = r_k + gamma V_k+1 - V_k;   A_k = delta_k + gamma lam A_k+1, whitened;   gamma = lam = 1\n"
        "value loss .5 mean max((V - target)^2, (clip(V, V_old ± .2) - target)^2)",
    ),
    "ppo_turn": Formula(
        "PPO over turns",
        "2512.17008",
        "delta_t = r_t + gamma V_t+1 - V_t;   A_t = delta_t + gamma lam A_t+1, whitened;   gamma = .99, lam = .9\n"
        "J = mean of PPO(r_turn, A_t)",
    ),
    "starpo_s": Formula(
        "StarPO-S",
        "2504.20073",
        "of G groups, max(floor(.25 G), 1) with the largest std of R are trained on\n"
        "A_k as PPO's;   J = mean of min(r A, clip(r, .8, 1.28) A)",
    ),
}
"""Of every row of the table."""

VARIANTS = [
    Formula(
        "GAGPO, with the paper's states",
        "2605.13217",
        "as GAGPO; two turns are in one state where their observations are equal",
        {"preset": "gagpo", "credit": {"key": "observation"}},
    ),
    Formula(
        "HGPO on WebShop",
        "2602.22817",
        "as HGPO with A_c = G - mean",
        {"preset": "hgpo", "credit": {"norm": "mean"}},
    ),
    Formula(
        "GraphGPO, the released recipe for ALFWorld",
        "2605.26684",
        "as GraphGPO with gamma = .1; d of an unreached v is the farthest finite d + 1\n"
        "the turn's own penalty is taken off r_G and off the episode's rewards; both norms are over turns",
        {
            "preset": "graphgpo",
            "credit": {"gamma": 0.1, "unreachable": "farther", "penalised": True, "statistics": "turn"},
        },
    ),
    Formula(
        "MileGPO on WebShop",
        "2608.19803",
        "as MileGPO with norm x = x - mean, theta_m = .5, rho = .5, eta = 1, kappa = 1",
        {
            "preset": "milegpo",
            "credit": {"norm": "mean", "retain_coverage": 0.5, "rest": 0.5, "eta": 1.0, "retain_branches": True},
        },
    ),
    Formula(
        "DPPO, binary KL",
        "2602.04879",
        "as DPPO; dropped where mu log(mu/pi) + (1 - mu) log((1 - mu)/(1 - pi)) > .05 and pi moved the way of A",
        {"preset": "dppo", "gate": {"divergence": "kl"}},
    ),
    Formula(
        "RAGEN-2's filter",
        "2604.06268",
        "as GRPO on the fewest groups, by falling std of R, whose std sum to at least .9 of all, less .01",
        {"preset": "grpo", "controllers": {"variance_filter": {"by": "spread", "share": 0.9}}},
    ),
    Formula(
        "RLOO without a clip",
        "2402.14740",
        "as RLOO;   J = mean of r A",
        {"preset": "rloo", "gate": "none"},
    ),
    Formula(
        "DAgger's loss alone",
        "1011.0686",
        "J = mean of log pi(a*) over the tokens of the expert's actions a* in the states that the policy visits",
        {"preset": "gagpo", "credit_weight": 0.0, "kl": {"coefficient": 0.0}, "expert": {}},
    ),
    Formula(
        "GAGPO beside the expert's loss, which falls",
        "",
        "J = GAGPO's + c mean of log pi(a*),   c from .5 in the first iteration to 0 after the last",
        {"preset": "gagpo", "expert": {"coefficient": 0.5, "schedule": "linear"}},
    ),
    Formula(
        "On-policy distillation",
        "2306.13649",
        "A_k = log pi_T(y_k) - log pi(y_k) of each token y_k that the policy sampled;   J = mean of PPO(r, A)\n"
        "here pi_T is the policy that has also read how another try of the task succeeded",
        {
            "preset": "dapo",
            "credit_weight": 0.0,
            "gate": {"name": "clip", "low": 0.2, "high": 0.2, "dual": None},
            "distillation": {"teacher": "self", "hint": "success"},
            "controllers": {"dynamic_sampling": None, "overlong": None},
        },
    ),
    Formula(
        "Bounded distillation beside GRPO",
        "2607.04751",
        "A_k = (R - mean)/(std + 1e-6) + c log(alpha rho + 1 - alpha),   rho = pi_T(y_k)/pi(y_k),   alpha = .5\n"
        "here pi_T is the policy that has also read what the expert would do",
        {
            "preset": "grpo",
            "distillation": {
                "teacher": "self",
                "hint": "expert",
                "form": "bounded",
                "coefficient": 0.1,
                "schedule": "cosine",
            },
        },
    ),
    Formula(
        "SPEAR",
        "2509.22601",
        "as Dr.GRPO with clip .2/.28 on the three quarters of groups with the largest std of R, beside which episodes\n"
        "of the last 10 iterations with A > 0 and R > med are trained on with A = c (R - med), med the running median\n"
        "c = (1 - cos(pi min(i/200, 1)))/2 in iteration i",
        {
            "preset": "dr_grpo",
            "gate": {"high": 0.28},
            "replay": {},
            "controllers": {"variance_filter": {"share": 0.75}},
        },
    ),
    Formula(
        "Truncated importance sampling",
        "",
        "each token's term times sg[min(w, 2)],   w = pi_trainer/pi_sampler before the first update",
        {"preset": "grpo", "correction": {"name": "token", "cap": 2.0}},
    ),
    Formula(
        "IcePop",
        "2510.18855",
        "each token's term times sg[M(w)],   M(w) = w within [.5, 5], 0 beyond",
        {"preset": "grpo", "correction": {"name": "icepop", "low": 0.5, "high": 5.0}},
    ),
    Formula(
        "KPop",
        "",
        "each token's term times 1[KL_b(pi || mu) <= 2] 1[KL_b(mu || pi) <= 2],   pi the trainer's, mu the sampler's\n"
        "KL_b(p || q) = p log(p/q) + (1 - p) log((1 - p)/(1 - q))",
        {"preset": "grpo", "correction": "kpop"},
    ),
    Formula(
        "Geometric mask of sequences",
        "",
        "each token's term times 1[1/3 <= exp(mean log w) <= 3],   the mean over the sequence",
        {"preset": "grpo", "correction": "sequence"},
    ),
]
"""Settings of rows that papers report, and what goes with any row."""


def page() -> str:
    """The index as Markdown."""
    parts = [HEAD, "## Rows\n"]
    parts += [section(ROWS[name], cells, f", `{name}`") for name, cells in PRESETS.items()]
    parts.append("## Settings of rows, and what goes with any\n")
    parts += [section(formula, formula.cells) for formula in VARIANTS]
    return "\n".join(parts)


def section(formula: Formula, cells: Cells, name: str = "") -> str:
    """One method as Markdown: heading, equation, YAML."""
    paper = f" — arXiv {formula.paper}" if formula.paper else ""
    equation = textwrap.indent(formula.equation, "    ")
    written = yaml.safe_dump({"algorithm": cells}, sort_keys=False, default_flow_style=None, width=110)
    return f"### {formula.title}{name}{paper}\n\n{equation}\n\n```yaml\n{written}```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
