import states from './us-states.json' with { type: 'json' };

/**
 * The states, the District of Columbia, and the territories that have NPIs, by postal code and by
 * name.
 */
const CODES: ReadonlyMap<string, string> = new Map(
  Object.entries(states).flatMap(([code, name]) => [
    [code.toLowerCase(), code] as const,
    [name, code] as const,
  ]),
);

/**
 * Returns the postal code of a US state from its name or code in any case.
 * @param country two-letter code as the vendor gives it; null counts as the US, where every NPI is
 * @returns null if it is not a US state: `CA` may be in Canada and `Victoria` in Australia
 */
export function usState(state: string | null, country: string | null): string | null {
  if (country !== null && country.toUpperCase() !== 'US') return null;
  if (state === null) return null;
  return CODES.get(state.toLowerCase()) ?? null;
}
