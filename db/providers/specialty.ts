import words from './specialties.json' with { type: 'json' };

const WORDS: ReadonlyMap<string, string> = new Map(Object.entries(words));
/** The first characters of a taxonomy code are those of the profession. */
const SHORTEST = 4;

/** Returns a person's specialty in words, or null if specialties.json has none for the code. */
export function specialtyOf(taxonomy: string | null): string | null {
  const code = taxonomy ?? '';
  for (let length = code.length; length >= SHORTEST; length -= 1) {
    const found = WORDS.get(code.slice(0, length));
    if (found !== undefined) return found;
  }
  return null;
}
