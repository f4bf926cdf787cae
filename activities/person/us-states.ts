/** The states, the District of Columbia and the territories that have NPIs: postal code and name. */
const STATES = `AL alabama, AK alaska, AZ arizona, AR arkansas, CA california, CO colorado, CT connecticut,
  DE delaware, DC district of columbia, FL florida, GA georgia, HI hawaii, ID idaho, IL illinois,
  IN indiana, IA iowa, KS kansas, KY kentucky, LA louisiana, ME maine, MD maryland, MA massachusetts,
  MI michigan, MN minnesota, MS mississippi, MO missouri, MT montana, NE nebraska, NV nevada,
  NH new hampshire, NJ new jersey, NM new mexico, NY new york, NC north carolina, ND north dakota,
  OH ohio, OK oklahoma, OR oregon, PA pennsylvania, RI rhode island, SC south carolina,
  SD south dakota, TN tennessee, TX texas, UT utah, VT vermont, VA virginia, WA washington,
  WV west virginia, WI wisconsin, WY wyoming, AS american samoa, GU guam, MP northern mariana islands,
  PR puerto rico, VI virgin islands`;

const CODES: ReadonlyMap<string, string> = new Map(
  STATES.split(/,\s+/).flatMap((state) => {
    const code = state.slice(0, 2);
    return [[code.toLowerCase(), code] as const, [state.slice(3), code] as const];
  }),
);

/**
 * The postal code of a US state from its name or code in any case.
 * @param country two-letter code as the vendor gives it; null is taken for the US, where every NPI is
 * @returns null if it isn't a state, or is one of another country: `CA` may be Canada's and `Victoria` Australia's
 */
export function usState(state: string | null, country: string | null): string | null {
  if (country !== null && country.toUpperCase() !== 'US') return null;
  return CODES.get(state?.toLowerCase() ?? '') ?? null;
}
