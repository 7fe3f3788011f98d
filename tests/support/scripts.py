"""Texts in eleven scripts: real words, invented ones of random letters, and what stands between words."""

import numpy as np

WORDS = {
    "Latin": "the miller counts his geese naïve Äcker œuvre don't snake_case co-operate über Łódź straße niño ﬁn",
    "Cyrillic": "мельник считает гусей на рассвете слово дело ёлка подъезд из-за Київ їжак",
    "Greek": "ένας μυλωνάς μετράει τις χήνες την αυγή λόγος έργο ἄνθρωπος",
    "Arabic": "الطحان يعد الإوز عند الفجر كلمة وجملة مدرسة مَدْرَسَة می‌خواهم",
    "Hebrew": 'הטוחן סופר את האווזים עם שחר מילה משפט שָׁלוֹם בית־ספר צה"ל',
    "Devanagari": "चक्की वाला भोर में हंस गिनता है शब्द और वाक्य हिन्दी क्षत्रिय",
    "Thai": "คนโม่แป้งนับห่านตอนรุ่งสาง สวัสดีครับ ภาษาไทย คำ ประโยค",
    "Han": "磨坊主在黎明时数鹅 中文 句子 词语 ひらがな カタカナ 日本語の文 々 𠀀𠮷",
    "Hangul": "방앗간 주인은 새벽에 거위를 센다 단어와 문장 한국어 꿿뷁",
    "Georgian": "მეწისქვილე ითვლის ბატებს გამთენიისას სიტყვა და წინადადება",
    "Armenian": "ջրաղացպանը հաշվում է սագերը լուսադեմին բառ ու նախադասություն",
}
_LETTERS = {
    "Latin": (0xDF, 0x17F), "Cyrillic": (0x430, 0x481), "Greek": (0x3B1, 0x3CE), "Arabic": (0x620, 0x669),
    "Hebrew": (0x5D0, 0x5EA), "Devanagari": (0x904, 0x963), "Thai": (0xE01, 0xE39), "Han": (0x4E00, 0x9FA5),
    "Hangul": (0xAC00, 0xD7A3), "Georgian": (0x10D0, 0x10F0), "Armenian": (0x561, 0x586),
}  # fmt: skip
_BETWEEN = (" ",) * 24 + (
    ", ", ". ", "; ", ": ", " (", ") ", " - ", " — ", " “", "” ", "\u2019", "…", "\n", ".\n\n", "\t",
)  # fmt: skip
_MARKS = (
    "  ", "   ", "/", "+", " = ", " € ", "₹", " → ", "?!", "。", "، ", "। ", "·", "_", "@", " 😀 ", "❤️", "\u00a0", "",
)  # fmt: skip


def mixed_texts(count: int, *, seed: int = 0) -> list[str]:
    """`count` texts of 4 to 40 words, most of a text in one script, with numbers, marks and blanks of many kinds."""
    random = np.random.default_rng(seed)
    names = list(WORDS)
    between = [*_BETWEEN * 2, *_MARKS]

    def word(script: str) -> str:
        if random.random() < 0.05:
            return str(random.integers(0, 10 ** random.integers(1, 7)))
        if random.random() < 0.15:
            first, last = _LETTERS[script]
            return "".join(map(chr, random.integers(first, last + 1, random.integers(1, 7))))
        words = WORDS[script].split()
        return words[random.integers(len(words))]

    texts = []
    for number in range(count):
        script, parts = names[number % len(names)], []
        for _ in range(random.integers(4, 41)):
            parts.append(word(script if random.random() < 0.9 else names[random.integers(len(names))]))
            parts.append(between[random.integers(len(between))])
        texts.append("".join(parts))
    return texts
