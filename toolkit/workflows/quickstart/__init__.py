"""`toolkit quickstart`: its stages (`program` tells their story), and the page that shows what they gave."""
