"""The tree of a study as a picture: a row for each model, with the steps that it trains itself."""

from collections.abc import Iterator, Sequence

from toolkit.report.figures.pictures import Panel, Picture, Point, Series
from toolkit.report.read.study import StudyModel

_STABLE, _DECAY, _FORK = 4.0, 1.6, 0.8
_GREY = 5


def study_picture(models: Sequence[StudyModel], *, name: str, title: str) -> Picture:
    """A line for each model from the checkpoint that it begins from, in the colour of its objective."""
    places = {model.name: -float(row) for row, model in enumerate(models)}
    series = tuple(
        line
        for parts in (_forks, _segments, _checkpoints)
        for line in parts(models, places)  # dots lie on top
    )
    return Picture(
        name=name,
        title=title,
        caption="A line is the steps that a model trains itself, from the checkpoint that it begins from; thin: the "
        "learning rate decays; dots: checkpoints that are kept.",
        x_label="training step",
        panels=(Panel("", series, "", rows=tuple((place, model) for model, place in places.items())),),
        has_points=False,
    )


def _forks(models: Sequence[StudyModel], places: dict[str, float]) -> Iterator[Series]:
    for model in models:
        if model.giver in places:
            ends = (Point(model.fork, places[model.giver]), Point(model.fork, places[model.name]))
            yield Series("", ends, _GREY, width=_FORK)


def _segments(models: Sequence[StudyModel], places: dict[str, float]) -> Iterator[Series]:
    segments = [(segment, places[model.name]) for model in models for segment in model.segments]
    objectives = list(dict.fromkeys(segment.objective for segment, _ in segments))
    for segment, place in segments:
        ends = (Point(segment.start, place), Point(segment.stop, place))
        color = objectives.index(segment.objective)
        yield Series(segment.objective, ends, color, width=_DECAY if segment.decays else _STABLE)


def _checkpoints(models: Sequence[StudyModel], places: dict[str, float]) -> Iterator[Series]:
    kept = tuple(Point(step, places[model.name]) for model in models for step in model.kept)
    yield Series("checkpoint", kept, _GREY, is_line=False)
