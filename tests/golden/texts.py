"""The texts whose tokens, vectors and logits are the fixtures: ordinary ones, and ones that break tokenizers.

Owns nothing but data; invisible characters are written as escapes. Order matters: fixtures name texts by their index.
"""

# What a server gets on an ordinary day and on a bad one. 36 texts; `generate.py` adds 14 of exact token lengths.
EVERYDAY = [
    "This is an example sentence",
    "Each sentence is converted",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "How many people live in Berlin?",
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "The quick brown fox jumps over the lazy dog, while the dog pretends not to have noticed anything at all.",
    "Tokenization of pneumonoultramicroscopicsilicovolcanoconiosis and antidisestablishmentarianism",
    "Don't panic: it's only a test, isn't it? We'll see...",
    "MiXeD CaSe ACRONYMS like NASA, GPU and TensorRT 10.x",
    "Crème brûlée, naïve café, Ångström and jalapeño",
    "for (int i = 0; i < n; ++i) { sum += values[i] * weights[i]; }",
    "https://www.example.org/a/b?c=d&e=%20f#g user@example.org +43 1 234 5678",
    "今天天气很好,我们去公园散步。",
    "北京大学的学生在图书馆里看书。",
    "服务器用向量回答每一个请求,速度非常快。",
    "這台電腦的電池可以用十一個小時。",
    "今日は天気がいいので、公園を散歩しましょう。",
    "カタカナとひらがなと漢字が混ざった文章です。ABC123",
    "오늘은 날씨가 좋아서 공원에서 산책을 합니다.",
    "يغادر القطار في الساعة السابعة ويصل قبل الظهر.",
    "السَّلَامُ عَلَيْكُمْ",
    "Поезд отправляется в семь часов утра.",
    "😀 😂 👍🏽 🎉",
    "👨\u200d👩\u200d👧\u200d👦 a family and a flag 🇦🇹 in one text 🚀🚀🚀",
    "Mixed: hello 世界, привет мир, مرحبا بالعالم, 😀 and 1,234.5 €",
    "",
    " ",
    "\n\t",
    "a",
    ".",
    "control \x01\x02\x1b characters \x7f and \x00 zero in\x85side",
    "[SEP] inside",
    "[CLS] and [MASK] and [UNK] and [PAD] in a text [SEP] twice [SEP]",
    "   runs    of      spaces   \t\t and \n\n\n newlines   ",
    "zero\u200bwidth\u200cand\u200djoiners \ufeff and soft\u00adhyphens and a non\u00a0breaking space",
]

# Words that are one token each for the real WordPiece vocabulary: texts of exact lengths are made of them.
WORDS = (
    "the river runs through an old town and under three stone bridges where people sell fish bread and flowers "
    "every morning while boats carry sand and wood down to the coast a man with a red hat plays music for the "
    "children who dance around him until the church bell rings at noon then everyone goes home to eat and sleep"
).split()

# Short and nasty: one idea each.
NASTY = [
    "", " ", "  ", "\t", "\n", "\r\n", "\n\t ", "a", "A", ".", "...", "0", "7",
    # runs of spaces and other blanks
    "two  spaces", "three   spaces", "  leading", "trailing  ", "  both  ", "tab\tinside", "line\nbreak", "line\r\nbreak",
    "no\u00a0break", "no\u00a0\u00a0break", "thin\u2009space", "em\u2003space", "ideographic\u3000space", "line\u2028sep", "para\u2029sep",
    "next\u0085line", "ogham\u1680space", "narrow\u202fspace", "\u00a0", "\u3000",
    # control and format characters
    "null\x00byte", "bell\x07", "\x1b[31mred\x1b[0m", "del\x7f", "c1\x80\x9f", "back\x08space", "vertical\x0btab", "form\x0cfeed",
    "zero\u200bwidth", "non\u200cjoiner", "joi\u200dner", "word\u2060joiner", "\ufeffbom", "soft\u00adhyphen", "lrm\u200erlm\u200f",
    "\u202eoverride\u202c", "\u2066isolate\u2069", "replacement\ufffd", "private\ue000use", "tag\U000e0061", "noncharacter\uffff", "\u200b",
    "object\ufffcreplacement",
    # CJK and neighbours
    "今天天气很好", "中文English混合", "ひらがな", "カタカナ", "ｶﾀｶﾅ ﾊﾟﾋﾟ", "한국어 텍스트", "ㅎㅏㄴ", "\u1112\u1161\u11ab", "㍿ ㌔", "𠀀𠮷", "「引用」、句点。",
    "全角ＡＢＣ１２３！", "漢字\u3099", "か\u3099",
    # Thai, Devanagari and other scripts that need shaping
    "สวัสดีครับ", "น้ำ", "नमस्ते दुनिया", "क्षत्रिय", "வணக்கம்", "გამარჯობა", "ᏣᎳᎩ", "ភាសាខ្មែរ", "བོད་ཡིག",
    # right to left
    "שלום עולם", "שָׁלוֹם", "مرحبا", "اَلسَّلَامُ", "ﷺ", "ﻻ ﺍﻟﺴﻼﻡ", "abc שלום 123",
    # combining marks and normalisation
    "café", "cafe\u0301", "Å", "A\u030a", "\u212b", "ﬁne ﬂow ﬃ", "x\u0301\u0302\u0303\u0304\u0305", "\u0301alone", "İstanbul ıI", "ß ẞ ſ", "Ǆ ǅ ǆ",
    "ΑΣ ας Σ", "½ ¾ ² ³ ① Ⅳ", "e\u0323\u0302 ệ", "Straße STRASSE", "ﾞ゛", "Å̊", "Ç̌",
    # emoji
    "😀", "😀😀", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "🇦🇹🇩🇪", "❤️ ❤", "1️⃣", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "text😀text",
    # strings that look like special tokens
    "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "a[SEP]b", "a [SEP] b", "[sep]", "[SEP", "SEP]", "[[SEP]]", "[CLS] [CLS]", "[unused1]",
    "<s>", "</s>", "<pad>", "<unk>", "<mask>", "a<mask>b", "a <mask> b", "a  <mask>  b", " </s></s> ", "<S>", "<s >", "< s >", "<s>NOTUSED", "</s>x<s>",
    # pieces, joiners, markers
    "##ing", "a ##ing", "# # #", "##", "▁", "▁▁a", "a▁b", "Ġ", "Ġa", "Ċ", "@@ a@@",
    # digits, punctuation, code, addresses
    "1 2 3", "3.14159", "1,234,567.89", "-5", "+5", "1e-10", "0x1F600", "2026-11-30T15:02:00Z", "don't", "we'll they've I'd", "it’s “quoted” – dash—",
    "a-b_c.d,e;f:g", "!!!???", "$100 €5 £3 ¥9", "C++ C# .NET", "x==y && z||w", "fn main() { println!(\"{}\", 1 << 3); }", "SELECT * FROM t;",
    "https://example.org/?q=a%20b&c=d#e", "user.name+tag@example.co.uk", "C:\\Users\\x", "/usr/bin/env", "<div class=\"a\">b</div>",
    "\\n \\t \\\\", "''\"\"``", "{}[]()", "a/b/c", "…",
    # long words
    "a" * 99, "a" * 100, "a" * 101, "b" * 250, "中" * 101, "pneumono" * 16, "é" * 100, "e\u0301" * 100, "😀" * 101, "1" * 120,
]

# The first sides and second sides of the pairs given to tiny models, and the single texts. `long` is built of these.
SINGLE = [
    "The server answers every request with a vector.",
    "How long does the battery last?",
    "the BATTERY lasts about Eleven hours",
    "Größere Städte haben mehr Brücken.",
    "Où est passé le garçon ?",
    "Поезд отправляется в семь часов.",
    "今天天气很好,我们去公园散步。",
    "今日は天気がいい。サーバー",
    "يغادر القطار في الساعة السابعة",
    "😀 and 👍 mixed with words 漢字",
    "",
    "   ",
    "a",
    "control\x01 and \u200b zero",
    "[SEP] </s> inside <mask> [MASK]",
    "<pad> first, then [PAD] and words <pad> after",
]

PAIRS = [
    ("How long does the battery last?", "The battery lasts about eleven hours when the screen is dark."),
    ("How long does the battery last?", "Bread is baked every morning in the small shop."),
    ("Two children are playing football in the park.", "Nobody is in the park."),
    ("Nobody is in the park.", "Two children are playing football in the park."),
    ("北京大学", "北京大学的学生在图书馆里看书,老师在教室里写字。"),
    ("Der Zug fährt um sieben Uhr", "Le train part à sept heures."),
    ("поезд", "Το τρένο φεύγει στις επτά"),
    ("", "an empty first side"),
    ("an empty second side", ""),
    ("", ""),
    ("a", "b"),
    ("equal", "equal"),
    ("[SEP] inside", "</s> inside <mask>"),
    ("😀", "يغادر القطار"),
    ("<pad> first", "and [PAD] second <pad>"),
]

FILLER = (
    "The train from Vienna to Prague leaves at seven and arrives before noon, and the river carries sand and stones "
    "from the mountains down to the coast while children play football in the park near the old church. "
)
