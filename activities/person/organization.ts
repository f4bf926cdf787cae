import type { EndpointFact, Neighbor, Neighbors, ProviderFacts } from '../../db/providers/subject.ts';
import type { Organization } from '../vendors/vendor.ts';
import { classify, holdsDomain, registrableDomain } from '../verification/domains.ts';
import { classifyEndpoint } from '../verification/looks.ts';
import { type Address, parseAddress } from '../verification/syntax.ts';
import { capitalize, isPlaceholder, isShouted, nameWords, personName } from './names.ts';

/** How far each source is trusted if it names one organization; of several, that divided by their number. */
const CONFIDENCE: Readonly<Record<Organization['source'], number>> = {
  // Entered by the provider or their office; some offices enter whoever handles their papers.
  endpoint_domain: 0.9,
  // Entered in the same form, as whom the endpoint belongs to: often a health system, not the practice.
  affiliation: 0.75,
  // A telephone is a practice's own, but for answering services and shared switchboards.
  same_phone: 0.7,
  // Without a suite, or with the suite on the second line, everyone in a medical building is at one address.
  same_address: 0.4,
};

/** Among more different organizations than this in one place, none is more likely than the others. */
const DIFFERENT_AT_MOST = 3;

/** Makers of record systems and of mail for them: an address there says what software is used, not who is worked for. */
const SOFTWARE: ReadonlySet<string> = new Set(
  `athenahealth.com nextgen.com allscripts.com veradigm.com eclinicalworks.com epic.com cerner.com
  oracle.com greenwayhealth.com practicefusion.com drchrono.com kareo.com tebra.com advancedmd.com
  modmed.com meditech.com charmhealth.com elationhealth.com`.split(/\s+/),
);

/** An organization as its NPIs in one place show it together. */
interface Group {
  readonly keys: ReadonlySet<string>;
  readonly name: string;
  readonly domain: string | null;
  /** How many NPIs it has here. */
  readonly size: number;
  /** Whether it bears the provider's surname: most practices of one physician do. */
  readonly namesake: boolean;
}

/** The addresses among endpoints that ordinary mail may reach, normalized, each once, in the order of the endpoints. */
export function ordinaryAddresses(endpoints: readonly EndpointFact[]): Address[] {
  const addresses = endpoints
    .filter(({ kind, endpoint }) => classifyEndpoint(kind, endpoint) === 'email')
    .map(({ endpoint }) => parseAddress(endpoint.trim().replace(/^mailto:/i, '')))
    .filter((address) => address !== null);
  return [...new Map(addresses.map((address) => [address.email, address])).values()];
}

/**
 * Where a provider works, as far as it can be derived, from the most to the least telling source: the domain of their
 * own endpoint address, the organization they name with an endpoint, the organization (type 2) at their telephone, the
 * one at their address. A name and a domain go together only if nothing says that they are different organizations'.
 * @returns null if nothing tells, or too much does
 */
export function deriveOrganization(facts: ProviderFacts): Organization | null {
  const own = mostFrequent(organizationDomains(facts.endpoints));
  const named = mostFrequent(affiliations(facts.endpoints));
  const surname = personName(facts.lastName) ?? '';
  const atPhone = groupsOf(facts.atPhone, surname);
  const atAddress = groupsOf(facts.atAddress, surname);
  const groups = [...atPhone, ...atAddress];
  if (own !== null) {
    const there = facts.endpoints.filter(({ endpoint }) => registrableDomain(endpoint) === own.value);
    const sole = atPhone.length === 1 && atPhone[0]?.domain === null ? atPhone[0] : undefined;
    const group = groups.find(({ domain }) => domain === own.value) ?? sole;
    const name = mostFrequent(affiliations(there))?.value ?? group?.name ?? null;
    return organization('endpoint_domain', name, own.value, own.different);
  }
  if (named !== null) {
    const domain = groups.find(({ keys }) => keys.has(organizationKey(named.value)))?.domain ?? null;
    return organization('affiliation', named.value, domain, named.different);
  }
  return choose('same_phone', atPhone) ?? choose('same_address', atAddress);
}

function choose(source: Organization['source'], groups: readonly Group[]): Organization | null {
  const [best] = groups;
  return best === undefined ? null : organization(source, best.name, best.domain, groups.length);
}

function organization(
  source: Organization['source'],
  name: string | null,
  domain: string | null,
  different: number,
): Organization {
  return { source, name, domain, confidence: CONFIDENCE[source] / different };
}

/** The organizations of a place, the likeliest first; none if they are too many. */
function groupsOf(neighbors: Neighbors, surname: string): Group[] {
  let groups: Neighbor[][] = [];
  for (const neighbor of neighbors ?? []) {
    const same = groups.filter((group) => group.some((one) => isSameOrganization(one, neighbor)));
    groups = [...groups.filter((group) => !same.includes(group)), [...same.flat(), neighbor]];
  }
  const described = groups.map((group) => describe(group, surname)).filter((group) => group !== null);
  if (described.length > DIFFERENT_AT_MOST) return [];
  return described.toSorted(
    (a, b) =>
      Number(b.namesake) - Number(a.namesake) ||
      Number(b.domain !== null) - Number(a.domain !== null) ||
      b.size - a.size,
  );
}

function isSameOrganization(one: Neighbor, other: Neighbor): boolean {
  const shares = (a: readonly string[], b: readonly string[]) => a.some((value) => b.includes(value));
  return (
    shares(keysOf(one), keysOf(other)) ||
    shares(organizationDomains(one.endpoints), organizationDomains(other.endpoints))
  );
}

/** People know a practice by the name on its door; if it has several, by the legal one as much as by any. */
function describe(group: readonly Neighbor[], surname: string): Group | null {
  const doors = [
    ...new Set(group.flatMap(({ otherNames }) => otherNames.flatMap((one) => organizationName(one) ?? []))),
  ];
  const legal = group.map(({ name }) => organizationName(name)).find((name) => name !== null);
  const name = (doors.length === 1 ? doors[0] : null) ?? legal ?? doors[0] ?? null;
  if (name === null) return null;
  return {
    keys: new Set(group.flatMap(keysOf)),
    name,
    domain: mostFrequent(group.flatMap(({ endpoints }) => organizationDomains(endpoints)))?.value ?? null,
    size: group.length,
    namesake: group.some((one) => holdsWords(one.name ?? '', surname)),
  };
}

function holdsWords(name: string, words: string): boolean {
  const spaced = (text: string) => ` ${nameWords(text).join(' ')} `;
  return words !== '' && spaced(name).includes(spaced(words));
}

function keysOf({ name, otherNames }: Neighbor): string[] {
  const names = [name, ...otherNames].filter((one) => organizationName(one) !== null);
  return names.map((one) => organizationKey(one ?? '')).filter((key) => key !== '');
}

/** Registrable domains of ordinary addresses, one for each address, without those that no employer has. */
function organizationDomains(endpoints: readonly EndpointFact[]): string[] {
  return ordinaryAddresses(endpoints)
    .filter(({ domain }) => classify(domain, null) !== 'personal' && !holdsDomain(SOFTWARE, domain))
    .map(({ domain }) => registrableDomain(domain))
    .filter((domain) => domain !== null);
}

function affiliations(endpoints: readonly EndpointFact[]): string[] {
  return endpoints.map((one) => organizationName(one.affiliationName)).filter((name) => name !== null);
}

/** The value met most often, of several the one met first; and how many different ones there are. */
function mostFrequent(
  values: readonly string[],
): { readonly value: string; readonly different: number } | null {
  const grouped = [...Map.groupBy(values, (value) => value)];
  const [first] = grouped.toSorted(([, one], [, other]) => other.length - one.length);
  return first === undefined ? null : { value: first[0], different: grouped.length };
}

const LEGAL_FORMS: ReadonlySet<string> = new Set(
  'llc pllc plc lc inc incorporated corp corporation co ltd limited llp lllp lp pc pa psc apc apmc sc chartered'.split(
    ' ',
  ),
);
const SMALL_WORDS: ReadonlySet<string> = new Set('and at by for in of on the to'.split(' '));

/** One key for the spellings of an organization's name: no legal form, no article, no case, no marks. */
export function organizationKey(name: string): string {
  const words = name
    .toLowerCase()
    .normalize('NFKD')
    .replace(/[\p{M}.'’]/gu, '')
    .replace(/&/g, ' and ')
    .split(/[^\p{L}\p{N}]+/u);
  return words.filter((word) => word !== 'the' && !LEGAL_FORMS.has(word)).join('');
}

/**
 * An organization's name as people write it, without its legal form, under which nobody searches for it.
 * @returns null if it says nothing
 */
export function organizationName(text: string | null): string | null {
  const words = (text ?? '').split(/[\s,]+/).filter((word) => /[\p{L}\p{N}&]/u.test(word));
  while (words.length > 1 && isLegalForm(words.at(-1) ?? '')) words.pop();
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name)) return null;
  return isShouted(name) ? words.map(caseWord).join(' ') : name;
}

function isLegalForm(word: string): boolean {
  return LEGAL_FORMS.has(word.toLowerCase().replace(/[^a-z]/g, ''));
}

/** Abbreviations keep their capitals as far as they can be told: no vowel, a dot, or a sign in them. */
function caseWord(word: string, index: number): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  return /^[^AEIOUY]+$|[.&/]/u.test(word) ? word : capitalize(word);
}
