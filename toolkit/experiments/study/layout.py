"""Layout of the models that share steps: bits are the same only where all have that of the first."""

from toolkit.experiments.study.tree import Tree
from toolkit.run.continuation import Continuation
from toolkit.run.settings import RunSettings


def settings_alone(tree: Tree, name: str) -> RunSettings:
    """Settings that make a model alone as its study does: where they leave the precision, the pipeline's stages and the
    rows of a micro-batch to the start of a run, those that the first run it shares steps with has chosen, once it has.
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
