"""Layout of models that share steps: results are bitwise equal only if all have the layout of the first."""

from toolkit.experiments.study.tree import Tree
from toolkit.run.continuation import Continuation
from toolkit.run.settings import RunSettings


def settings_alone(tree: Tree, name: str) -> RunSettings:
    """Settings that train a model alone as its study does: if they leave the precision, pipeline stages or micro-batch
    rows to the start of a run, those chosen by the first run that it shares steps with, once that has started.
    """
    leaf = first = tree.leaves[name]
    while first.giver is not None:
        first = tree.leaves[first.giver]
    begun = first.model.run.folder.newest_manifest()
    run = Continuation(begun).keep_choices(leaf.model.run)
    settings = run.settings
    if begun is None:
        return settings
    parallel, train = settings.parallel, settings.train
    if run.keeps_stages:
        parallel = parallel.model_copy(update={"stages": tuple(len(blocks) for blocks in run.stages)})
    if train.micro_batch_rows is None:
        train = train.model_copy(update={"micro_batch_rows": begun.layout.micro_batch_rows})
    return settings.model_copy(update={"parallel": parallel, "train": train})
