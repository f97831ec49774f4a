"""What limits the labels on each set: `python -m benchmarks.limits --seeds 0 1 2`.

The graph itself (how pure it is, and where the true classes end up when each point may follow its edges), the candidates
(the best one, by labels), and the choice among them. Results go to `benchmarks/results/limits.csv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from .data import SETS, data_folder, load, present
from .process import RESULTS, Rows, append, circumstances, in_process, prepare
from .report import markdown
from .run import read_rows

COLUMNS = tuple(
    "set seed status purity nmi_followed nmi_best nmi_chosen modularity_true modularity_chosen separation_true "
    "separation_chosen threads versions commit machine".split()
)


def measure(task: dict[str, Any]) -> Rows:
    from scvcc import VCC
    from scvcc._clusters.merging import ClusterGraph
    from scvcc._clusters.partition import RESOLUTION, candidate_partitions, choose_partition
    from scvcc._clusters.polish import polish
    from scvcc._model.parameters import checked_settings
    from scvcc._training.graph import latent_graph
    from scvcc._training.layout import optimize_structure
    from scvcc._training.monitor import Monitor
    from scvcc._training.run import Run
    from scvcc.metrics import nmi

    data, rng = load(task["set"], Path(task["data"])), np.random.default_rng(task["seed"])
    truth = np.unique(data.y, return_inverse=True)[1]
    graph = latent_graph(data.graph)
    settings = checked_settings(VCC(data.n_classes), len(truth))
    _, H = optimize_structure(Run(graph, settings, task["seed"], Monitor(0, show=False)))
    candidates, _ = candidate_partitions(H, graph, data.n_classes, np.random.default_rng(task["seed"]))
    chosen = choose_partition(H, graph, data.n_classes, np.random.default_rng(task["seed"]))
    followed = polish(graph, truth[None], rng.permutation(len(truth)), RESOLUTION)[0]
    views = {"true": ClusterGraph.of(graph, truth), "chosen": ClusterGraph.of(graph, chosen)}
    neighbors = data.neighbors[0][:, 1:]
    row = {
        "purity": float((truth[neighbors] == truth[:, None]).mean()),
        "nmi_followed": nmi(truth, followed),
        "nmi_best": max(nmi(truth, labels) for labels in candidates),
        "nmi_chosen": nmi(truth, chosen),
    }
    for name, view in views.items():
        row |= {
            f"modularity_{name}": view.modularity(RESOLUTION),
            f"separation_{name}": view.separation(),
        }
    return [{key: round(value, 4) for key, value in row.items()}]


def page(path: Path) -> str:
    rows = pd.read_csv(path)
    rows = rows[rows.status == "ok"].drop_duplicates(["set", "seed"], keep="last")
    table = rows.groupby("set", sort=False)[list(COLUMNS[3:11])].mean()
    lines = []
    for name in (name for name in SETS if name in table.index):
        row = table.loc[name]
        pairs = (f"{row[f'{judge}_true']:.2f} / {row[f'{judge}_chosen']:.2f}" for judge in ("modularity", "separation"))
        nmis = (f"{row[f'nmi_{kind}']:.3f}" for kind in ("followed", "best", "chosen"))
        lines.append([SETS[name].title, f"{row.purity:.3f}", *nmis, *pairs])
    header = ("set", "purity", "truth that follows the graph", "best candidate", "chosen", "modularity", "separation")
    text = (
        f"Means over {rows.groupby('set').seed.nunique().min()} seeds, K given. *Purity*: share of graph neighbors with "
        "the same true class. *Truth that follows the graph*: start from the true classes and let single points move "
        "wherever modularity gains; the NMI of the outcome with the true classes is the best that this graph allows. *Best "
        "candidate*: the highest NMI among the candidate partitions, picked by the labels; *chosen*: the one that the rule "
        "picks without labels. *Modularity* and *separation*: two of the three judges, on the true classes / on the chosen "
        "partition. If the second number is larger, no better search would find the truth by that judge.\n\n"
    )
    return f"## What limits the labels\n\n{text}{markdown(header, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="processor seconds")
    parser.add_argument("--data", help="folder of the data sets (default: $SCVCC_DATA, then ../shared/data)")
    parser.add_argument("--out", type=Path, default=RESULTS / "limits.csv")
    parser.add_argument("--again", action="store_true", help="run again what was measured")
    args = parser.parse_args()
    prepare(args.threads)
    here, folder = circumstances(args.threads), data_folder(args.data)
    done = {(row["set"], int(row["seed"])) for row in read_rows(args.out) if row["status"] == "ok" and not args.again}
    todo = [(name, seed) for name in present(args.sets, folder) for seed in args.seeds if (name, seed) not in done]
    for name, seed in tqdm(todo, unit="run"):
        task = {"set": name, "seed": seed, "data": str(folder)}
        rows = [
            here | {"set": name, "seed": seed} | row for row in in_process(measure, task, args.timeout * args.threads)
        ]
        append(args.out, COLUMNS, [{column: row.get(column) for column in COLUMNS} for row in rows])


if __name__ == "__main__":
    main()
