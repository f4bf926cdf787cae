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

interface Trust {
  /** From 0 to 1. */
  readonly confidence: number;
  readonly witness: string;
}

/**
 * The confidence of each kind of evidence if it names only one employer, and its witness. Several
 * pieces from one witness count once. Pieces from several witnesses add up as if they were
 * independent.
 */
const TRUST = {
  // The operator's table has a domain for this person.
  operator: { confidence: 0.97, witness: 'operator' },
  // An address that contains their surname, ordinary or Direct.
  own_mailbox: { confidence: 0.85, witness: 'mailbox' },
  // The group for which they bill Medicare. Another organization at its address is mostly the same.
  clinician_group: { confidence: 0.75, witness: 'practices' },
  // A phone number belongs to one practice, except for answering services and shared switchboards.
  same_phone: { confidence: 0.7, witness: 'primary practice location' },
  // The organization of an endpoint, entered by the provider or their office. Often it is a health
  // system and not the practice.
  affiliation: { confidence: 0.6, witness: 'affiliation' },
  same_suite: { confidence: 0.55, witness: 'primary practice location' },
  // An office's address or a server's host. Some offices enter the company that does their
  // paperwork.
  endpoint_domain: { confidence: 0.5, witness: 'endpoint' },
  // A place without a suite is shared with all others in the building that give none.
  same_address: { confidence: 0.4, witness: 'primary practice location' },
  // A place where they work one day a week, or worked before they moved.
  elsewhere: { confidence: 0.35, witness: 'practices' },
} as const satisfies Readonly<Record<string, Trust>>;
type Source = keyof typeof TRUST;

/** The most organizations at one place. Among more, none is more likely than the others. */
const MAX_DIFFERENT = 3;
/**
 * The weight of an organization with the provider's surname in its name. Most practices of a single
 * physician have it.
 */
const NAMESAKE = 4;
/** The shortest surnames that count. Shorter ones occur in local parts and domains by chance. */
const MIN_SURNAME = { local: 3, domain: 5 };
const MAX_EMPLOYERS = 3;
/** The lowest confidence; less is a guess. */
const MIN_CONFIDENCE = 0.1;

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

type Place = ProviderFacts['places'][number];

/** All evidence about one organization. */
type Employer = readonly Evidence[];

/**
 * Derives the organizations where a provider works, most likely first.
 * @returns at most three, each with a name or a domain; empty if the evidence is missing or
 * ambiguous
 */
export function deriveEmployers(facts: ProviderFacts): Organization[] {
  const employers = together(evidenceIn(facts));
  const organizations = employers.map((employer) => describe(employer, employers));
  return organizations
    .filter(isLikely)
    .toSorted((one, other) => other.confidence - one.confidence)
    .slice(0, MAX_EMPLOYERS);
}

function isLikely({ name, domain, confidence }: Organization): boolean {
  return (name !== null || domain !== null) && confidence >= MIN_CONFIDENCE;
}

function evidenceIn(facts: ProviderFacts): Evidence[] {
  const surname = nameWords(facts.lastName);
  const known = new Map(facts.domains.map(({ key, domain }) => [key, domain]));
  const derived = [
    ...facts.places.flatMap((place) => ofPlace(place, surname)),
    ...facts.practices.flatMap((practice) => ofPractice(practice, facts)),
    ...facts.endpoints.map((endpoint) => ofEndpoint(endpoint, surname)),
  ];
  const telling = derived.filter(({ names, domains }) => names.length + domains.length > 0);
  const evidence = telling.map((one) => withKnownDomain(one, known));
  const own = known.get(`npi:${facts.npi}`);
  if (own) evidence.push(evidenceOf('operator', [], [own]));
  return evidence;
}

/** Replaces derived domains with the operator's, if one is known for a key. */
function withKnownDomain(evidence: Evidence, known: ReadonlyMap<string, string>): Evidence {
  for (const key of evidence.keys) {
    const domain = known.get(key);
    if (domain !== undefined) return { ...evidence, domains: [domain] };
  }
  return evidence;
}

function evidenceOf(
  source: Source,
  names: readonly (string | null)[],
  domains: readonly string[],
): Evidence {
  const given = names.filter((name) => name !== null);
  const said = given.filter((name) => organizationName(name) !== null);
  const keys = said.map((name) => `name:${organizationKey(name)}`);
  return { source, question: source, weight: 1, keys, names: namesIn(said), domains };
}

function ofPlace({ at, key, neighbors }: Place, surname: readonly string[]): Evidence[] {
  const source = sourceAt(at, key);
  if (!neighbors) return [];
  return neighbors.map((neighbor) => ofNeighbor(neighbor, source, key, surname));
}

function sourceAt(at: Place['at'], key: string): Source {
  if (at === 'phone') return 'same_phone';
  if (at !== 'address') return at;
  return / (?:STE|FL|RM|APT) /.test(key) ? 'same_suite' : 'same_address';
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
  const spacedName = ` ${nameWords(name).join(' ')} `;
  const isNamesake = surname.length > 0 && spacedName.includes(` ${surname.join(' ')} `);
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
  const domains = byFrequency(domainsOf(colleagues));
  const shared = domains.find(({ value, times }) => times > 1 || resembles(value, name));
  const named = evidenceOf('clinician_group', [name], shared ? [shared.value] : []);
  const group = {
    ...named,
    weight: String(members ?? 1).length,
    keys: [`pac_id:${pacId}`, ...named.keys],
  };
  const isHere = phoneKey === facts.phoneKey || addressKey === facts.addressKey;
  if (!isHere) return [group];
  return [group, { ...group, source: 'same_address', question: 'group here' }];
}

function ofEndpoint(endpoint: EndpointFact, surname: readonly string[]): Evidence {
  const { affiliationName } = endpoint;
  const [domain] = domainsOf([endpoint]);
  if (domain === undefined) return evidenceOf('affiliation', [affiliationName], []);
  const family = surname.join('');
  const [local = ''] = endpoint.endpoint.toLowerCase().split('@');
  const plainLocal = local.replace(/[^a-z0-9]/g, '');
  const isInLocal = family.length >= MIN_SURNAME.local && plainLocal.includes(family);
  const isInDomain = family.length >= MIN_SURNAME.domain && domain.includes(family);
  if (isInLocal || isInDomain) return evidenceOf('own_mailbox', [affiliationName], [domain]);
  return evidenceOf('endpoint_domain', [affiliationName], [domain]);
}

/**
 * Groups evidence by employer. Two pieces belong together if they share a key or a domain, or if
 * one has only a domain and the other only a name that it resembles.
 */
function together(evidence: readonly Evidence[]): Employer[] {
  let employers: Employer[] = [];
  for (const one of evidence) {
    const isSame = (employer: Employer) => employer.some((other) => belongTogether(one, other));
    const same = employers.filter(isSame);
    const others = employers.filter((employer) => !same.includes(employer));
    employers = [...others, [...same.flat(), one]];
  }
  return employers;
}

function belongTogether(one: Evidence, other: Evidence): boolean {
  return (
    share(one.keys, other.keys) ||
    share(one.domains, other.domains) ||
    isDomainOf(one, other) ||
    isDomainOf(other, one)
  );
}

function share(values: readonly string[], others: readonly string[]): boolean {
  return values.some((value) => others.includes(value));
}

/** Returns true if evidence with only a domain fits evidence with only a name. */
function isDomainOf({ names, domains }: Evidence, other: Evidence): boolean {
  if (names.length > 0 || other.domains.length > 0) return false;
  return domains.some((domain) => other.names.some((name) => resembles(domain, name)));
}

/** Returns an employer in the form that vendors get. */
function describe(employer: Employer, all: readonly Employer[]): Organization {
  const weighed = employer
    .map(({ source, question }) => {
      const weight = TRUST[source].confidence * shareOf(employer, question, all);
      return { source, weight };
    })
    .toSorted((one, other) => other.weight - one.weight);
  const [strongest] = weighed;
  const witnesses = Map.groupBy(weighed, ({ source }) => TRUST[source].witness);
  let doubt = 1;
  for (const pieces of witnesses.values()) {
    const weights = pieces.map(({ weight }) => weight);
    doubt *= 1 - Math.max(...weights);
  }
  const [frequent] = byFrequency(employer.flatMap(({ names }) => names.slice(0, 1)));
  const name = frequent?.value ?? null;
  return {
    source: strongest?.source ?? 'elsewhere',
    name,
    domain: domainOf(employer, name),
    confidence: Math.round((1 - doubt) * 100) / 100,
  };
}

/** Returns the most trusted domain. A domain that resembles the name comes first. */
function domainOf(employer: Employer, name: string | null): string | null {
  let best: string | null = null;
  let bestTrust = 0;
  for (const { source, domains } of employer) {
    for (const domain of domains) {
      let trust: number = TRUST[source].confidence;
      if (resembles(domain, name)) trust += 1;
      if (trust <= bestTrust) continue;
      best = domain;
      bestTrust = trust;
    }
  }
  return best;
}

/** Returns an employer's share of a question's confidence, by the weight of its evidence there. */
function shareOf(employer: Employer, question: string, all: readonly Employer[]): number {
  const weights = all.map((one) => weightOf(one, question)).filter((weight) => weight > 0);
  const own = weightOf(employer, question);
  if (weights.length > MAX_DIFFERENT && own < NAMESAKE) return 0;
  return own / weights.reduce((sum, weight) => sum + weight, 0);
}

function weightOf(employer: Employer, question: string): number {
  const pieces = employer.filter((piece) => piece.question === question);
  return pieces.reduce((sum, piece) => sum + piece.weight, 0);
}

function namesIn(texts: readonly (string | null)[]): string[] {
  return texts.map(organizationName).filter((name) => name !== null);
}

/** Counts each value, most frequent first. Values with equal counts keep their order. */
function byFrequency(values: readonly string[]) {
  const groups = [...Map.groupBy(values, (value) => value)];
  const counted = groups.map(([value, { length }]) => ({ value, times: length }));
  return counted.toSorted((one, other) => other.times - one.times);
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
  const hosts = endpoints.map(hostOf).filter((host) => classify(host, null) !== 'personal');
  const domains = hosts.map(registrableDomain).filter((domain) => domain !== null);
  return domains.filter(isEmployerDomain);
}

/**
 * Returns the host of an endpoint, or empty text if it says nothing about the owner. A host for
 * Direct messages may serve many organizations, unless it is like `direct.clinic.org`.
 */
function hostOf({ kind, endpoint }: EndpointFact): string {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const host = parseAddress(text)?.domain ?? hostOfUrl(text);
  const found = classifyEndpoint(kind, endpoint);
  if (found === 'junk') return '';
  if (found === 'direct' && !host.startsWith('direct.')) return '';
  return host;
}

function hostOfUrl(text: string): string {
  const url = text.includes('://') ? text : `https://${text}`;
  return URL.parse(url)?.hostname ?? '';
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
  if (text === null) return null;
  const words = organizationWords(text);
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name)) return null;
  if (SAYS_NOTHING.test(organizationKey(name))) return null;
  if (!isShouted(name)) return name;
  return words.map(caseWord).join(' ');
}

/**
 * Writes a word in mixed case. Abbreviations stay in capitals if we recognize them: no vowel, a dot
 * or a sign in them, a state at the end.
 */
function caseWord(word: string, index: number, words: readonly string[]): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  const isLast = index > 0 && index === words.length - 1;
  const isState = isLast && /^[A-Z]{2}$/.test(word) && words[index - 1] !== '&';
  if (isState && usState(word, null) !== null) return word;
  const isAbbreviation = /^[^AEIOUY]+$|[.&/]/u.test(word);
  if (isAbbreviation) return word;
  return capitalize(word);
}

/** Words that occur in the names and domains of thousands of practices. */
const COMMON = readLines(new URL('./practice-words.txt', import.meta.url));
/** The shortest words and initials that count. Shorter ones occur in domains by chance. */
const MIN_TELLING = { word: 4, initials: 3 };

/**
 * Returns true if a domain was made from an organization's name. It either contains a rare word of
 * the name, or is its initials with at most a word such as `md` or `clinic` after them.
 */
export function resembles(domain: string, name: string | null): boolean {
  if (name === null) return false;
  const [label = ''] = domain.replace(/[^a-z0-9.]/g, '').split('.');
  const words = nameWords(name).filter((word) => !SMALL_WORDS.has(word));
  if (words.some((word) => isRare(word) && label.includes(word))) return true;
  const initials = words.map(([letter]) => letter).join('');
  const bareLabel = label.replace(/(?:md|med|health|care|clinic)$/, '');
  return initials.length >= MIN_TELLING.initials && bareLabel === initials;
}

function isRare(word: string): boolean {
  return word.length >= MIN_TELLING.word && !COMMON.has(word);
}
