import states from './us-states.json' with { type: 'json' };

/**
 * Maps the lowercase code and the name of each state to its code. Includes the District of Columbia
 * and the territories in which providers have NPIs.
 */
const CODES: ReadonlyMap<string, string> = new Map(
  Object.entries(states).flatMap(([code, name]) => [
    [code.toLowerCase(), code] as const,
    [name, code] as const,
  ]),
);

/**
 * Returns the two-letter code of a US state.
 * @param state the name or the code of the state, in any case
 * @param country the two-letter code of the country. Null counts as the US, because all NPIs are
 * assigned there.
 * @returns null if the text is not a US state, or if the country is not the US. For example, `CA`
 * with the country `CA` means Canada.
 */
export function usState(state: string | null, country: string | null): string | null {
  if (country !== null && country.toUpperCase() !== 'US') return null;
  if (state === null) return null;
  return CODES.get(state.toLowerCase()) ?? null;
}
