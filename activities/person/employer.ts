import { organizationKey, organizationWords } from '../../db/providers/keys.ts';
import type {
  ClinicianPractice,
  EndpointFact,
  Neighbor,
  ProviderFacts,
} from '../../db/providers/subject.ts';
import type { Organization } from '../vendors/vendor.ts';
import { classify, holdsDomain, readLines, registrableDomain } from '../verification/domains.ts';
import { classifyEndpoint, isDirect } from '../verification/looks.ts';
import { parseAddress } from '../verification/syntax.ts';
import { capitalize, isPlaceholder, isShouted, nameWords } from './names.ts';
import { usState } from './us-states.ts';

/**
 * How far a piece of evidence is trusted if it names one employer alone, and who says it: what one
 * witness says twice counts once, what several say adds up as if each were independent of the
 * others.
 */
const TRUST = {
  // The operator's table has a domain for this very person.
  operator: [0.97, 'operator'],
  // An address with their surname in it, ordinary or Direct.
  own_mailbox: [0.85, 'mailbox'],
  // For whom they bill Medicare; another organization at that address is mostly the same.
  clinician_group: [0.75, 'practices'],
  // A telephone is a practice's own, but for answering services and shared switchboards.
  same_phone: [0.7, 'primary practice location'],
  // Entered by the provider or their office, as whom an endpoint belongs to: often a health system,
  // not the practice.
  affiliation: [0.6, 'affiliation'],
  same_suite: [0.55, 'primary practice location'],
  // An office's address, a server's host: some offices enter whoever handles their papers.
  endpoint_domain: [0.5, 'endpoint'],
  // Whoever gives no suite is in one building with all others who give none.
  same_address: [0.4, 'primary practice location'],
  // Where they are one day a week, or were before they moved.
  elsewhere: [0.35, 'practices'],
} as const satisfies Readonly<Record<string, readonly [confidence: number, witness: string]>>;
type Source = keyof typeof TRUST;

/**
 * Among more different organizations than this in one place, none is more likely than the others.
 */
const DIFFERENT_AT_MOST = 3;
/**
 * An organization with the provider's surname in its name counts as so many: most practices of one
 * physician have it.
 */
const NAMESAKE = 4;
/** Shorter surnames stand in any local part, or in any domain, by chance. */
const SURNAME_AT_LEAST = { local: 3, domain: 5 };
const EMPLOYERS_AT_MOST = 3;
/** Less is a guess. */
const CONFIDENCE_AT_LEAST = 0.1;

/** Something that names an employer. */
interface Evidence {
  readonly source: Source;
  /**
   * What has one answer: a place, or all evidence of one kind. Whoever is named there has a share
   * of the confidence.
   */
  readonly question: string;
  readonly weight: number;
  readonly keys: readonly string[];
  readonly names: readonly string[];
  readonly domains: readonly string[];
}

/** All evidence about one organization. */
type Employer = readonly Evidence[];

/**
 * Where a provider works, as far as it can be derived, the likeliest first.
 * @returns at most three, each with a name or a domain; none if nothing tells, or too much does
 */
export function deriveEmployers(facts: ProviderFacts): Organization[] {
  const surname = nameWords(facts.lastName ?? '');
  const known = new Map(facts.domains.map(({ key, domain }) => [key, domain]));
  const derived = [
    ...facts.places.flatMap(({ at, key, neighbors }) => {
      const atAddress = / (?:STE|FL|RM|APT) /.test(key) ? 'same_suite' : 'same_address';
      const source = at === 'address' ? atAddress : at === 'phone' ? 'same_phone' : at;
      return (neighbors ?? []).map((one) => ofNeighbor(one, source, key, surname));
    }),
    ...facts.practices.flatMap((practice) => ofPractice(practice, facts)),
    ...facts.endpoints.map((endpoint) => ofEndpoint(endpoint, surname)),
  ].filter(({ names, domains }) => names.length + domains.length > 0);
  // What the operator says is in the place of what was derived.
  const evidence = derived.map((one) => {
    const domain = one.keys.map((key) => known.get(key)).find((found) => found !== undefined);
    return domain === undefined ? one : { ...one, domains: [domain] };
  });
  const own = known.get(`npi:${facts.npi}`);
  if (own) evidence.push(evidenceOf('operator', [], [own]));
  const employers = together(evidence);
  return employers
    .map((employer) => describe(employer, employers))
    .filter(
      ({ name, domain, confidence }) =>
        (name ?? domain) !== null && confidence >= CONFIDENCE_AT_LEAST,
    )
    .toSorted((one, other) => other.confidence - one.confidence)
    .slice(0, EMPLOYERS_AT_MOST);
}

function evidenceOf(
  source: Source,
  names: readonly (string | null)[],
  domains: readonly string[],
): Evidence {
  const said = names.filter((name) => organizationName(name) !== null).map((name) => name ?? '');
  const keys = said.map((name) => `name:${organizationKey(name)}`);
  return { source, question: source, weight: 1, keys, names: namesIn(said), domains };
}

/**
 * People know a practice by the name on its door; if it has several, by the legal one as much as by
 * any.
 */
function ofNeighbor(
  one: Neighbor,
  source: Source,
  question: string,
  surname: readonly string[],
): Evidence {
  const { npi, name, parentName, otherNames, endpoints } = one;
  const named = evidenceOf(source, [name, ...otherNames, parentName], domainsOf(endpoints));
  const doors = namesIn(otherNames);
  const spaced = (words: readonly string[]) => ` ${words.join(' ')} `;
  const isNamesake = surname.length > 0 && spaced(nameWords(name ?? '')).includes(spaced(surname));
  return {
    ...named,
    question,
    weight: isNamesake ? NAMESAKE : 1,
    keys: [`npi:${npi}`, ...named.keys],
    names: doors.length === 1 ? doors : named.names,
  };
}

/**
 * A group's clinicians share its domain; one of them alone may have another employer beside it. Of
 * several groups the larger is likelier to be the one that gives mailboxes: each counts by how many
 * digits its size has.
 */
function ofPractice(practice: ClinicianPractice, facts: ProviderFacts): Evidence[] {
  const { pacId, name, members, phoneKey, addressKey, colleagues } = practice;
  if (pacId === '') return [];
  const shared = byFrequency(domainsOf(colleagues)).find(
    ({ value, length }) => length > 1 || resembles(value, name ?? ''),
  );
  const named = evidenceOf('clinician_group', [name], shared ? [shared.value] : []);
  const one = {
    ...named,
    weight: String(members ?? 1).length,
    keys: [`pac_id:${pacId}`, ...named.keys],
  };
  const isHere = phoneKey === facts.phoneKey || addressKey === facts.addressKey;
  return isHere ? [one, { ...one, source: 'same_address', question: 'group here' }] : [one];
}

function ofEndpoint(endpoint: EndpointFact, surname: readonly string[]): Evidence {
  const { affiliationName } = endpoint;
  const [domain] = domainsOf([endpoint]);
  if (domain === undefined) return evidenceOf('affiliation', [affiliationName], []);
  const family = surname.join('');
  const [local = ''] = endpoint.endpoint
    .toLowerCase()
    .replace(/[^a-z0-9@]/g, '')
    .split('@');
  const isOwn =
    (family.length >= SURNAME_AT_LEAST.local && local.includes(family)) ||
    (family.length >= SURNAME_AT_LEAST.domain && domain.includes(family));
  return evidenceOf(isOwn ? 'own_mailbox' : 'endpoint_domain', [affiliationName], [domain]);
}

/**
 * By employer: evidence with a key or a domain in common, or a domain alone and a name alone that
 * it resembles.
 */
function together(evidence: readonly Evidence[]): Employer[] {
  const shares = (a: readonly string[], b: readonly string[]) =>
    a.some((value) => b.includes(value));
  const fits = ({ names, domains }: Evidence, other: Evidence) =>
    names.length + other.domains.length === 0 &&
    domains.some((domain) => other.names.some((name) => resembles(domain, name)));
  const isSame = (one: Evidence, other: Evidence) =>
    shares(one.keys, other.keys) ||
    shares(one.domains, other.domains) ||
    fits(one, other) ||
    fits(other, one);
  let employers: Employer[] = [];
  for (const one of evidence) {
    const same = employers.filter((employer) => employer.some((other) => isSame(one, other)));
    employers = [
      ...employers.filter((employer) => !same.includes(employer)),
      [...same.flat(), one],
    ];
  }
  return employers;
}

/** As vendors are told of an employer. */
function describe(employer: Employer, all: readonly Employer[]): Organization {
  const weighed = employer
    .map(({ source, question }) => ({
      source,
      weight: TRUST[source][0] * shareOf(employer, question, all),
    }))
    .toSorted((one, other) => other.weight - one.weight);
  const witnesses = [...Map.groupBy(weighed, ({ source }) => TRUST[source][1]).values()];
  const doubt = witnesses.reduce((product, [best]) => product * (1 - (best?.weight ?? 0)), 1);
  const name = byFrequency(employer.flatMap(({ names }) => names.slice(0, 1)))[0]?.value ?? null;
  const telling = (domain: string, source: Source) =>
    TRUST[source][0] + Number(name !== null && resembles(domain, name));
  const [domain = null] =
    employer
      .flatMap(({ source, domains }) => domains.map((one) => [one, telling(one, source)] as const))
      .toSorted(([, one], [, other]) => other - one)[0] ?? [];
  const source = weighed[0]?.source ?? 'elsewhere';
  return { source, name, domain, confidence: Math.round((1 - doubt) * 100) / 100 };
}

/** How much of a question's confidence an employer has: by how much names it there. */
function shareOf(employer: Employer, question: string, all: readonly Employer[]): number {
  const weightOf = (one: Employer) =>
    one.reduce((sum, piece) => sum + (piece.question === question ? piece.weight : 0), 0);
  const weights = all.map(weightOf).filter((weight) => weight > 0);
  const own = weightOf(employer);
  if (weights.length > DIFFERENT_AT_MOST && own < NAMESAKE) return 0;
  return own / weights.reduce((sum, weight) => sum + weight, 0);
}

function namesIn(texts: readonly (string | null)[]): string[] {
  return texts.map(organizationName).filter((name) => name !== null);
}

/** Each value and how often it is there, the most frequent first, of several the one met first. */
function byFrequency(values: readonly string[]) {
  const counted = [...Map.groupBy(values, (value) => value)].map(([value, { length }]) => ({
    value,
    length,
  }));
  return counted.toSorted((one, other) => other.length - one.length);
}

const NOT_EMPLOYERS = readLines(new URL('./not-employers.txt', import.meta.url));

/**
 * Whether an employer may have this domain: it is no free mail, serves no Direct messages to
 * others, and belongs to none of those in not-employers.txt, where an address says what software is
 * used, not who is worked for.
 * @param domain registrable
 */
export function isEmployerDomain(domain: string): boolean {
  return (
    classify(domain, null) !== 'personal' &&
    !isDirect(domain) &&
    !holdsDomain(NOT_EMPLOYERS, domain)
  );
}

/**
 * The registrable domains of addresses and URLs that an employer may have, one for each endpoint.
 */
function domainsOf(endpoints: readonly EndpointFact[]): string[] {
  return endpoints
    .map(hostOf)
    .map((host) => (classify(host, null) === 'personal' ? null : registrableDomain(host)))
    .filter((domain) => domain !== null)
    .filter(isEmployerDomain);
}

/**
 * Empty if it names none that says whose it is: a host for Direct messages may serve many, unless
 * it is `direct.clinic.org`.
 */
function hostOf({ kind, endpoint }: EndpointFact): string {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const url = URL.parse(text.includes('://') ? text : `https://${text}`);
  const host = parseAddress(text)?.domain ?? url?.hostname ?? '';
  const found = classifyEndpoint(kind, endpoint);
  return found === 'junk' || (found === 'direct' && !host.startsWith('direct.')) ? '' : host;
}

const SMALL_WORDS: ReadonlySet<string> = new Set('and at by for in of on the to'.split(' '));

/** What is left of `N/A`, and of a legal form alone. */
const SAYS_NOTHING = /^(?:na|notapplicable|same|self)?$/;

/**
 * An organization's name as people write it, without its legal form, under which nobody searches
 * for it.
 * @returns null if it says nothing
 */
export function organizationName(text: string | null): string | null {
  const words = organizationWords(text ?? '');
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name) || SAYS_NOTHING.test(organizationKey(name)))
    return null;
  return isShouted(name) ? words.map(caseWord).join(' ') : name;
}

/**
 * Abbreviations keep their capitals as far as they can be told: no vowel, a dot or a sign in them,
 * a state at the end.
 */
function caseWord(word: string, index: number, words: readonly string[]): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  const isState =
    index > 0 && index === words.length - 1 && /^[A-Z]{2}$/.test(word) && words[index - 1] !== '&';
  if (isState && usState(word, null) !== null) return word;
  return /^[^AEIOUY]+$|[.&/]/u.test(word) ? word : capitalize(word);
}

/** Words that stand in the names and in the domains of thousands of practices. */
const COMMON = readLines(new URL('./practice-words.txt', import.meta.url));
/** Shorter words and initials stand in any domain by chance. */
const TELLING_AT_LEAST = { word: 4, initials: 3 };

/**
 * Whether a domain was made of an organization's name: it has a word of it that few have, or begins
 * with its initials.
 */
export function resembles(domain: string, name: string): boolean {
  const [label = ''] = domain.replace(/[^a-z0-9.]/g, '').split('.');
  const words = nameWords(name).filter((word) => !SMALL_WORDS.has(word));
  const initials = words.map(([letter]) => letter).join('');
  return (
    words.some(
      (word) => word.length >= TELLING_AT_LEAST.word && !COMMON.has(word) && label.includes(word),
    ) ||
    (initials.length >= TELLING_AT_LEAST.initials &&
      label.replace(/(?:md|med|health|care|clinic)$/, '') === initials)
  );
}
