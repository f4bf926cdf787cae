import { organizationKey } from '../../db/providers/keys.ts';
import type {
  ClinicianPractice,
  EndpointFact,
  Neighbor,
  ProviderFacts,
} from '../../db/providers/subject.ts';
import type { Organization, Subject } from '../vendors/vendor.ts';
import { domainsOf, employerDomains } from './employer-domains.ts';
import { nameWords } from './names.ts';
import { organizationName, resembles } from './organization-name.ts';

interface Trust {
  /** How likely it is that evidence of this kind names the provider's employer, from 0 to 1. */
  readonly confidence: number;
  readonly witness: string;
}

/**
 * The confidence of each kind of evidence about an employer, if the evidence names only one
 * organization. The `witness` groups kinds of evidence that have the same origin: from each group,
 * only the strongest piece counts. Pieces from different groups are combined as independent
 * probabilities.
 */
const TRUST = {
  // The operator has entered a domain for this person.
  operator: { confidence: 0.97, witness: 'operator' },
  // The current employer in a vendor's own profile of the person.
  vendor_profile: { confidence: 0.8, witness: 'vendor_profile' },
  // An endpoint of the provider that contains their surname. It is an ordinary email address or a
  // Direct address (secure health email).
  own_mailbox: { confidence: 0.85, witness: 'mailbox' },
  // The group for which the provider bills Medicare. Another organization at the group's address is
  // usually the same employer under another name.
  clinician_group: { confidence: 0.75, witness: 'practices' },
  // The domain of verified addresses in our directory that at least two other clinicians with the
  // provider's phone number, suite, or group have.
  colleagues: { confidence: 0.85, witness: 'colleagues' },
  // An organization with the provider's phone number. A phone number usually belongs to one
  // practice. Exceptions are answering services and shared switchboards.
  same_phone: { confidence: 0.7, witness: 'primary practice location' },
  // The organization that the provider or their office has entered for an endpoint. It is often a
  // health system and not the practice.
  affiliation: { confidence: 0.6, witness: 'affiliation' },
  same_suite: { confidence: 0.55, witness: 'primary practice location' },
  // The same as `colleagues`, but only one colleague has an address, or they only share an address
  // without a suite number.
  colleague: { confidence: 0.45, witness: 'colleagues' },
  // The domain of an endpoint that does not contain the surname. Some offices enter an endpoint of
  // the company that does their paperwork.
  endpoint_domain: { confidence: 0.5, witness: 'endpoint' },
  // An organization at the same address without a suite number. It may be any organization in the
  // building.
  same_address: { confidence: 0.4, witness: 'primary practice location' },
  // An organization at another practice location. The provider may work there only one day a week,
  // or may have moved away.
  elsewhere: { confidence: 0.35, witness: 'practices' },
} as const satisfies Readonly<Record<string, Trust>>;
type Source = keyof typeof TRUST;

/**
 * The most organizations at one place that count as possible employers. If there are more, only
 * those with a weight of at least `NAMESAKE` count.
 */
const MAX_DIFFERENT = 3;
/**
 * The weight of an organization whose name contains the provider's surname. Other organizations
 * have a weight of 1. Most practices of a single physician are named after the physician.
 */
const NAMESAKE = 4;
/**
 * The shortest surnames that we search for. Shorter ones occur in local parts and domains by
 * chance.
 */
const MIN_SURNAME = { local: 3, domain: 5 };
const MAX_EMPLOYERS = 3;
/** Organizations with a lower confidence are not returned. */
const MIN_CONFIDENCE = 0.1;
/**
 * An employer is clear if it has at least this confidence, and at least this lead over every other
 * employer. The clear employer's domain was right for 69 % of 372 invented clinicians with
 * colleagues in the directory, and wrong for 2 %. Without these limits it was wrong for 8 %.
 */
const CLEAR = { confidence: 0.85, lead: 0.3 };

interface Evidence {
  readonly source: Source;
  /**
   * The question that this evidence answers, such as which organization is at an address. It is the
   * key of a place, or the kind of evidence. If several organizations answer the same question,
   * they share its confidence according to their weights.
   */
  readonly question: string;
  readonly weight: number;
  readonly keys: readonly string[];
  readonly names: readonly string[];
  readonly domains: readonly string[];
}

type Place = ProviderFacts['places'][number];

/** All pieces of evidence about one organization. */
type Employer = readonly Evidence[];

/**
 * Derives the organizations where a provider probably works, most likely first.
 * @returns at most three organizations, each with a name or a domain. Empty if there is no
 * evidence, or if it is ambiguous.
 */
export function deriveEmployers(facts: ProviderFacts): Organization[] {
  const employers = together(evidenceIn(facts));
  const organizations = employers.map((employer) => describe(employer, employers));
  return organizations
    .filter(isLikely)
    .toSorted((one, other) => other.confidence - one.confidence)
    .slice(0, MAX_EMPLOYERS);
}

/**
 * Returns the likeliest employer if it is clear, otherwise null. The employer is not clear if the
 * evidence is weak, or if there is some evidence for another employer.
 */
export function clearEmployer({
  organization,
  otherOrganizations,
}: Pick<Subject, 'organization' | 'otherOrganizations'>): Organization | null {
  if (organization === null || organization.confidence < CLEAR.confidence) {
    return null;
  }
  const [next = null] = otherOrganizations;
  const lead = organization.confidence - (next === null ? 0 : next.confidence);
  return lead < CLEAR.lead ? null : organization;
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
    ...ofColleagues(facts),
    ...facts.endpoints.map((endpoint) => ofEndpoint(endpoint, surname)),
    ...facts.profiles.map(ofProfile),
  ];
  const telling = derived.filter(
    ({ names, domains }) => names.length + domains.length > 0,
  );
  const evidence = telling.map((one) => withKnownDomain(one, known));
  const own = known.get(`npi:${facts.npi}`);
  if (own) evidence.push(evidenceOf('operator', [], [own]));
  return evidence;
}

/**
 * Replaces the domains of a piece of evidence if the operator has entered a domain for the same
 * organization, which is recognized by its keys.
 */
function withKnownDomain(
  evidence: Evidence,
  known: ReadonlyMap<string, string>,
): Evidence {
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
  return isSuite(key) ? 'same_suite' : 'same_address';
}

function isSuite(addressKey: string): boolean {
  return / (?:STE|FL|RM|APT) /.test(addressKey);
}

/**
 * Returns the evidence about an organization that has the provider's address or phone number.
 * People know a practice by the name under which it does business. If it has exactly one such name,
 * only that name is used. Otherwise its legal name is used as well.
 */
function ofNeighbor(
  one: Neighbor,
  source: Source,
  question: string,
  surname: readonly string[],
): Evidence {
  const { npi, name, parentName, otherNames, endpoints } = one;
  const named = evidenceOf(
    source,
    [name, ...otherNames, parentName],
    domainsOf(endpoints),
  );
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
 * Returns the evidence about a group for which the provider bills Medicare. A domain counts as the
 * group's if several of its clinicians use it or if it resembles the group's name. The domain of
 * only one clinician may belong to another employer. Larger groups are more likely to provide
 * mailboxes, so the weight is the number of digits of the group's size.
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

/**
 * Returns the evidence in the addresses of the provider's colleagues: for each phone number,
 * address, and group, the domain that most of them have. If the domain belongs to the only
 * organization at the place, or to the group, it is evidence for that organization.
 */
function ofColleagues({ colleagues, places, practices }: ProviderFacts): Evidence[] {
  const groups = Map.groupBy(colleagues, ({ key }) => key);
  return [...groups].flatMap(([key, here]) => {
    const domains = employerDomains(here.flatMap(({ domain }) => domain ?? []));
    const [most] = byFrequency(domains);
    if (most === undefined || most.times <= domains.length / 2) return [];
    const place = places.find((one) => one.key === key);
    const isOffice = place?.at !== 'address' || isSuite(key);
    const source = isOffice && most.times > 1 ? 'colleagues' : 'colleague';
    const practice = practices.find(({ pacId }) => pacId === key);
    const neighbors = place?.neighbors ?? [];
    const names = neighbors.length === 1 ? neighbors.map(({ name }) => name) : [];
    if (practice !== undefined) names.push(practice.name);
    return [{ ...evidenceOf(source, names, [most.value]), question: `at ${key}` }];
  });
}

function ofEndpoint(endpoint: EndpointFact, surname: readonly string[]): Evidence {
  const { affiliationName } = endpoint;
  const [domain] = domainsOf([endpoint]);
  if (domain === undefined) {
    return evidenceOf('affiliation', [affiliationName], []);
  }
  const family = surname.join('');
  const [local = ''] = endpoint.endpoint.toLowerCase().split('@');
  const plainLocal = local.replace(/[^a-z0-9]/g, '');
  const isInLocal = family.length >= MIN_SURNAME.local && plainLocal.includes(family);
  const isInDomain = family.length >= MIN_SURNAME.domain && domain.includes(family);
  if (isInLocal || isInDomain) {
    return evidenceOf('own_mailbox', [affiliationName], [domain]);
  }
  return evidenceOf('endpoint_domain', [affiliationName], [domain]);
}

function ofProfile({ employerDomain }: ProviderFacts['profiles'][number]): Evidence {
  const domains = employerDomains(employerDomain === null ? [] : [employerDomain]);
  return evidenceOf('vendor_profile', [], domains);
}

/**
 * Groups evidence by employer. Two pieces belong together if they share a key or a domain. They
 * also belong together if one has only a domain, the other has only names, and the domain resembles
 * one of the names.
 */
function together(evidence: readonly Evidence[]): Employer[] {
  let employers: Employer[] = [];
  for (const one of evidence) {
    const isSame = (employer: Employer) =>
      employer.some((other) => belongTogether(one, other));
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

/**
 * Returns true if the first evidence has no names, `other` has only names, and a domain of the first
 * resembles a name of `other`.
 */
function isDomainOf({ names, domains }: Evidence, other: Evidence): boolean {
  if (names.length > 0 || other.domains.length > 0) return false;
  return domains.some((domain) => other.names.some((name) => resembles(domain, name)));
}

/** Combines the evidence about one employer into its name, its domain, and a confidence. */
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

/**
 * Returns the employer's domain with the highest confidence. A domain that resembles the name is
 * preferred.
 */
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

/**
 * Returns an employer's share of the confidence of one question. It is the employer's weight
 * divided by the sum of the weights of all employers that answer this question. It is 0 if more
 * than `MAX_DIFFERENT` employers answer it, unless the employer's own weight is at least
 * `NAMESAKE`.
 */
function shareOf(employer: Employer, question: string, all: readonly Employer[]): number {
  const weights = all
    .map((one) => weightOf(one, question))
    .filter((weight) => weight > 0);
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

/**
 * Counts how often each value occurs. Returns the most frequent value first. Values with equal
 * counts keep their order.
 */
function byFrequency(values: readonly string[]) {
  const groups = [...Map.groupBy(values, (value) => value)];
  const counted = groups.map(([value, { length }]) => ({ value, times: length }));
  return counted.toSorted((one, other) => other.times - one.times);
}
