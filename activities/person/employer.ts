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
 * The confidence of each kind of evidence if it names only one employer, and its witness. Several
 * pieces from one witness count once. Pieces from several witnesses add up as if they were
 * independent.
 */
const TRUST = {
  // The operator's table has a domain for this person.
  operator: [0.97, 'operator'],
  // An address that contains their surname, ordinary or Direct.
  own_mailbox: [0.85, 'mailbox'],
  // The group for which they bill Medicare. Another organization at its address is mostly the same.
  clinician_group: [0.75, 'practices'],
  // A phone number belongs to one practice, except for answering services and shared switchboards.
  same_phone: [0.7, 'primary practice location'],
  // The organization of an endpoint, entered by the provider or their office. Often it is a health
  // system and not the practice.
  affiliation: [0.6, 'affiliation'],
  same_suite: [0.55, 'primary practice location'],
  // An office's address or a server's host. Some offices enter the company that does their
  // paperwork.
  endpoint_domain: [0.5, 'endpoint'],
  // A place without a suite is shared with all others in the building that give none.
  same_address: [0.4, 'primary practice location'],
  // A place where they work one day a week, or worked before they moved.
  elsewhere: [0.35, 'practices'],
} as const satisfies Readonly<Record<string, readonly [confidence: number, witness: string]>>;
type Source = keyof typeof TRUST;

/** The most organizations at one place. Among more, none is more likely than the others. */
const DIFFERENT_AT_MOST = 3;
/**
 * The weight of an organization with the provider's surname in its name. Most practices of a single
 * physician have it.
 */
const NAMESAKE = 4;
/** The shortest surnames that count. Shorter ones occur in local parts and domains by chance. */
const SURNAME_AT_LEAST = { local: 3, domain: 5 };
const EMPLOYERS_AT_MOST = 3;
/** The lowest confidence; less is a guess. */
const CONFIDENCE_AT_LEAST = 0.1;

interface Evidence {
  readonly source: Source;
  /**
   * The question that this evidence answers: a place, or a kind of evidence. The organizations
   * named there share its confidence.
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
 * Derives the organizations where a provider works, most likely first.
 * @returns at most three, each with a name or a domain; empty if the evidence is missing or
 * ambiguous
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
  // A domain from the operator replaces the derived ones.
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
 * Returns the evidence of an organization at the same place or phone. People know a practice by the
 * name on its door. If it has several, its legal name is as likely as any.
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
 * Returns the evidence of a group that the provider bills for. A group's clinicians share its
 * domain. A single one of them may have a second employer. A larger group is more likely to give
 * out mailboxes, so the weight is the number of digits of its size.
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
 * Groups evidence by employer. Two pieces belong together if they share a key or a domain, or if
 * one has only a domain and the other only a name that it resembles.
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

/** Returns an employer in the form that vendors get. */
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

/** Returns an employer's share of a question's confidence, by the weight of its evidence there. */
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

/** Counts each value, most frequent first. Values with equal counts keep their order. */
function byFrequency(values: readonly string[]) {
  const counted = [...Map.groupBy(values, (value) => value)].map(([value, { length }]) => ({
    value,
    length,
  }));
  return counted.toSorted((one, other) => other.length - one.length);
}

const NOT_EMPLOYERS = readLines(new URL('./not-employers.txt', import.meta.url));

/**
 * Returns true if a domain may belong to an employer. Free mail, hosts of Direct messages for
 * others, and domains in not-employers.txt do not count. The latter show the software that is used,
 * not the employer.
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
 * Returns the registrable domains of addresses and URLs that may belong to an employer, one for
 * each endpoint.
 */
function domainsOf(endpoints: readonly EndpointFact[]): string[] {
  return endpoints
    .map(hostOf)
    .map((host) => (classify(host, null) === 'personal' ? null : registrableDomain(host)))
    .filter((domain) => domain !== null)
    .filter(isEmployerDomain);
}

/**
 * Returns the host of an endpoint, or empty text if it says nothing about the owner. A host for
 * Direct messages may serve many organizations, unless it is like `direct.clinic.org`.
 */
function hostOf({ kind, endpoint }: EndpointFact): string {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const url = URL.parse(text.includes('://') ? text : `https://${text}`);
  const host = parseAddress(text)?.domain ?? url?.hostname ?? '';
  const found = classifyEndpoint(kind, endpoint);
  return found === 'junk' || (found === 'direct' && !host.startsWith('direct.')) ? '' : host;
}

const SMALL_WORDS: ReadonlySet<string> = new Set('and at by for in of on the to'.split(' '));

/** Matches the keys of `N/A` and of names that are only a legal form. */
const SAYS_NOTHING = /^(?:na|notapplicable|same|self)?$/;

/**
 * Returns an organization's name as people write it, without its legal form, because nobody
 * searches for that.
 * @returns null if the name says nothing
 */
export function organizationName(text: string | null): string | null {
  const words = organizationWords(text ?? '');
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name) || SAYS_NOTHING.test(organizationKey(name)))
    return null;
  return isShouted(name) ? words.map(caseWord).join(' ') : name;
}

/**
 * Writes a word in mixed case. Abbreviations stay in capitals if we recognize them: no vowel, a dot
 * or a sign in them, a state at the end.
 */
function caseWord(word: string, index: number, words: readonly string[]): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  const isState =
    index > 0 && index === words.length - 1 && /^[A-Z]{2}$/.test(word) && words[index - 1] !== '&';
  if (isState && usState(word, null) !== null) return word;
  return /^[^AEIOUY]+$|[.&/]/u.test(word) ? word : capitalize(word);
}

/** Words that occur in the names and domains of thousands of practices. */
const COMMON = readLines(new URL('./practice-words.txt', import.meta.url));
/** The shortest words and initials that count. Shorter ones occur in domains by chance. */
const TELLING_AT_LEAST = { word: 4, initials: 3 };

/**
 * Returns true if a domain was made from an organization's name. It either contains a rare word of
 * the name, or is its initials with at most a word such as `md` or `clinic` after them.
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
