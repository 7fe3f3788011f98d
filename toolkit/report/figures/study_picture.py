"""The tree of a study as a picture: a row for each model, with the steps that it trains itself."""

from collections.abc import Sequence

from toolkit.report.figures.pictures import Panel, Picture, Point, Series
from toolkit.report.read.study import StudyModel

_STABLE, _DECAY, _FORK = 4.0, 1.6, 0.8
_GREY = 5


def study_picture(models: Sequence[StudyModel], *, name: str, title: str) -> Picture:
    """A line for each model from the checkpoint that it begins from, in the colour of its objective."""
    places = {model.name: -float(row) for row, model in enumerate(models)}
    objectives = list(dict.fromkeys(segment.objective for model in models for segment in model.segments))
    forks, segments, kept = list[Series](), list[Series](), list[Point]()
    for model in models:
        place = places[model.name]
        if model.giver in places:
            ends = (Point(model.fork, places[model.giver]), Point(model.fork, place))
            forks.append(Series("", ends, _GREY, width=_FORK))
        for segment in model.segments:
            ends, color = (Point(segment.start, place), Point(segment.stop, place)), objectives.index(segment.objective)
            segments.append(Series(segment.objective, ends, color, width=_DECAY if segment.decays else _STABLE))
        kept += [Point(step, place) for step in model.kept]
    # Dots lie on top.
    series = (*forks, *segments, Series("checkpoint", tuple(kept), _GREY, is_line=False))
    return Picture(
        name=name,
        title=title,
        caption="A line is the steps that a model trains itself, from the checkpoint that it begins from; thin: the "
        "learning rate decays; dots: checkpoints that are kept.",
        x_label="training step",
        panels=(Panel("", series, "", rows=tuple((place, model) for model, place in places.items())),),
        has_points=False,
    )
