"""The best guesses for a masked word in ten sentences, by the stock pipeline of transformers.

python fill_mask.py FOLDER...        folders that `toolkit convert --to-hf` wrote; a Markdown table
"""

import sys

from transformers import pipeline

SENTENCES = {
    "The capital of France is {}.": "Paris",
    "She poured hot {} into the cup and added some sugar.": "tea",
    "Water freezes at zero {} Celsius.": "degrees",
    "The opposite of hot is {}.": "cold",
    "Shakespeare wrote many {}, among them Hamlet.": "plays",
    "The sun rises in the {} and sets in the west.": "east",
    "He took his umbrella because it was {}.": "raining",
    "A year has twelve {}.": "months",
    "The doctor told the {} to take the medicine twice a day.": "patient",
    "Two plus two is {}.": "four",
}


def main(folders: list[str]) -> None:
    """Print a row for each sentence: the place of the word that was expected, and the best guess."""
    print("| sentence | " + " | ".join(folders) + " |\n|---|" + "---|" * len(folders))
    pipelines = [pipeline("fill-mask", model=folder, device="cpu") for folder in folders]
    places = [[0] * len(SENTENCES) for _ in folders]
    for number, (sentence, word) in enumerate(SENTENCES.items()):
        cells = []
        for column, fill in enumerate(pipelines):
            # The blank is part of the word in these vocabularies: "is<mask>" and not "is <mask>".
            guesses = fill(sentence.replace(" {}", fill.tokenizer.mask_token), top_k=1000)
            found = [guess["token_str"].strip().lower() for guess in guesses]
            place = found.index(word.lower()) + 1 if word.lower() in found else len(found) + 1
            places[column][number] = place
            cells.append(f"{guesses[0]['token_str'].strip()} ({place if place <= len(found) else '> 1,000'})")
        print(f"| {sentence.format('[' + word + ']')} | " + " | ".join(cells) + " |")
    in_five = [f"{sum(place <= 5 for place in column)} of {len(column)}" for column in places]
    print("| among the first five | " + " | ".join(in_five) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
