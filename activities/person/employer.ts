import { organizationKey } from '../../db/providers/keys.ts';
import type { EndpointFact, Neighbor, ProviderFacts } from '../../db/providers/subject.ts';
import type { Organization } from '../vendors/vendor.ts';
import { classify, holdsDomain, readDomains, registrableDomain } from '../verification/domains.ts';
import { classifyEndpoint, isDirect } from '../verification/looks.ts';
import { type Address, parseAddress } from '../verification/syntax.ts';
import { nameWords } from './names.ts';
import { organizationName, resembles } from './organization.ts';

type Source = Organization['source'];

/** How far a piece of evidence is trusted if it names one employer alone; of several, each has its share of that. */
const CONFIDENCE: Readonly<Record<Source, number>> = {
  // The operator's table has a domain for this very person.
  operator: 0.97,
  // An address with their surname in it, ordinary or Direct.
  own_mailbox: 0.85,
  // For whom they billed Medicare, within a year.
  clinician_group: 0.75,
  // A telephone is a practice's own, but for answering services and shared switchboards.
  same_phone: 0.7,
  // Entered by the provider or their office, as whom an endpoint belongs to: often a health system, not the practice.
  affiliation: 0.6,
  same_suite: 0.55,
  // An office's address, a server's host: some offices enter whoever handles their papers.
  endpoint_domain: 0.5,
  // Whoever gives no suite is in one building with all others who give none.
  same_address: 0.4,
  // Where they are one day a week, or were before they moved.
  elsewhere: 0.35,
};

/** Among more different organizations than this in one place, none is more likely than the others. */
const DIFFERENT_AT_MOST = 3;
/** An organization with the provider's surname in its name counts as so many: most practices of one physician have it. */
const NAMESAKE = 4;
const EMPLOYERS_AT_MOST = 3;
/** Less is a guess. */
const CONFIDENCE_AT_LEAST = 0.1;

/** Something that names an employer. */
interface Evidence {
  readonly source: Source;
  /** What has only one answer: a place, or all evidence of one kind. Whoever is named in it shares its confidence. */
  readonly question: string;
  readonly weight: number;
  /** Of the organization, the likeliest first: two pieces with a key in common are about one organization. */
  readonly keys: readonly string[];
  readonly names: readonly string[];
  readonly domains: readonly string[];
}

/**
 * Where a provider works, as far as it can be derived, the likeliest first. What is about one organization, by an id,
 * a name or a domain, is put together; several pieces of evidence make an employer likelier than one.
 * @returns at most three, each with a name or a domain; none if nothing tells, or too much does
 */
export function deriveEmployers(facts: ProviderFacts): Organization[] {
  const surname = nameWords(facts.lastName ?? '');
  const known = new Map(facts.domains.map(({ kind, value, domain }) => [`${kind}:${value}`, domain]));
  const own = known.get(`npi:${facts.npi}`);
  const evidence = [
    ...facts.places.flatMap(({ at, key, neighbors }) => {
      const source = at === 'address' ? addressSource(key) : at === 'phone' ? 'same_phone' : at;
      return (neighbors ?? []).map((one) => ofNeighbor(one, source, key, surname));
    }),
    ...facts.practices.flatMap((practice) => ofPractice(practice, facts)),
    ...facts.endpoints.flatMap((endpoint) => ofEndpoint(endpoint, surname)),
    ...(own ? [{ ...NOTHING, source: 'operator' as const, question: 'operator', domains: [own] }] : []),
  ].map((one) => withKnownDomain(one, known));
  const employers = joinNameless(together(evidence));
  return employers
    .map((employer) => describe(employer, employers, known))
    .filter(({ name, domain, confidence }) => (name ?? domain) !== null && confidence >= CONFIDENCE_AT_LEAST)
    .toSorted((one, other) => other.confidence - one.confidence)
    .slice(0, EMPLOYERS_AT_MOST);
}

const NOTHING = { weight: 1, keys: [], names: [], domains: [] } as const;

function addressSource(key: string): Source {
  return / (?:STE|FL|RM|APT) /.test(key) ? 'same_suite' : 'same_address';
}

/** People know a practice by the name on its door; if it has several, by the legal one as much as by any. */
function ofNeighbor(one: Neighbor, source: Source, question: string, surname: readonly string[]): Evidence {
  const { npi, name, parentName, otherNames, endpoints } = one;
  const doors = namesIn(otherNames);
  const names = doors.length === 1 ? doors : namesIn([name, ...otherNames]);
  const keys = [`npi:${npi}`, ...nameKeys([name, ...otherNames, parentName])];
  const spaced = (words: readonly string[]) => ` ${words.join(' ')} `;
  const isNamesake = surname.length > 0 && spaced(nameWords(name ?? '')).includes(spaced(surname));
  const domains = domainsOf(endpoints);
  return { source, question, weight: isNamesake ? NAMESAKE : 1, keys, names, domains };
}

/**
 * A group's clinicians share its domain; one of them alone may have another employer beside it. Of several groups the
 * larger is likelier to be the one that gives mailboxes: each counts by how many digits its size has.
 */
function ofPractice(
  { group, phoneKey, addressKey, colleagues }: ProviderFacts['practices'][number],
  facts: ProviderFacts,
): Evidence[] {
  if (group === null) return [];
  const { pacId, name, members } = group;
  const names = namesIn([name]);
  const shared = [...Map.groupBy(domainsOf(colleagues), (domain) => domain)]
    .filter(([domain, all]) => all.length > 1 || names.some((one) => resembles(domain, one)))
    .toSorted(([, one], [, other]) => other.length - one.length)
    .map(([domain]) => domain);
  const keys = [`pac_id:${pacId}`, ...nameKeys([name])];
  const weight = String(members ?? 1).length;
  const one = { weight, keys, names, domains: shared.slice(0, 1) };
  const isHere = phoneKey === facts.phoneKey || addressKey === facts.addressKey;
  return [
    { ...one, source: 'clinician_group', question: 'clinician_group' },
    ...(isHere ? [{ ...one, source: 'same_address' as const, question: 'group here' }] : []),
  ];
}

function ofEndpoint(endpoint: EndpointFact, surname: readonly string[]): Evidence[] {
  const [domain] = domainsOf([endpoint]);
  const names = namesIn([endpoint.affiliationName]);
  const keys = nameKeys([endpoint.affiliationName]);
  if (domain === undefined) {
    return names.map((name) => ({
      ...NOTHING,
      source: 'affiliation',
      question: 'affiliation',
      keys,
      names: [name],
    }));
  }
  const family = surname.join('');
  const [text = ''] = endpoint.endpoint
    .toLowerCase()
    .replace(/[^a-z0-9@]/g, '')
    .split('@');
  const isOwn = family.length >= SURNAME_AT_LEAST && `${text} ${domain}`.includes(family);
  const source = isOwn ? 'own_mailbox' : 'endpoint_domain';
  return [{ ...NOTHING, source, question: source, keys, names, domains: [domain] }];
}

/** Shorter ones stand in anything. */
const SURNAME_AT_LEAST = 3;

/** What the operator says is in the place of what was derived. */
function withKnownDomain(one: Evidence, known: ReadonlyMap<string, string>): Evidence {
  const domain = one.keys.map((key) => known.get(key)).find((found) => found !== undefined);
  return domain === undefined ? one : { ...one, domains: [domain] };
}

type Employer = readonly Evidence[];

/** Puts together what is about one organization. */
function together(evidence: readonly Evidence[]): Employer[] {
  const shares = (a: readonly string[], b: readonly string[]) => a.some((value) => b.includes(value));
  let employers: Employer[] = [];
  for (const one of evidence) {
    const same = employers.filter((employer) =>
      employer.some((other) => shares(one.keys, other.keys) || shares(one.domains, other.domains)),
    );
    employers = [...employers.filter((employer) => !same.includes(employer)), [...same.flat(), one]];
  }
  return employers;
}

/**
 * A domain without a name goes to the organization without a domain whose name it resembles; a person's own mailbox to
 * the only organization there is.
 */
function joinNameless(employers: readonly Employer[]): Employer[] {
  const isNamed = (employer: Employer) => employer.some(({ names }) => names.length > 0);
  const hasDomain = (employer: Employer) => employer.some(({ domains }) => domains.length > 0);
  const named = employers.filter(isNamed);
  const joined = new Map<Employer, Employer[]>();
  for (const nameless of employers.filter((employer) => !isNamed(employer))) {
    const domains = nameless.flatMap((one) => one.domains);
    const isOwn = nameless.some(({ source }) => source === 'own_mailbox');
    const fitting = named.filter(
      (employer) =>
        !hasDomain(employer) &&
        ((isOwn && named.length === 1) ||
          employer.some(({ names }) => names.some((name) => domains.some((one) => resembles(one, name))))),
    );
    const [to = nameless] = fitting;
    joined.set(to, [...(joined.get(to) ?? []), nameless]);
  }
  const own = employers.filter((employer) => isNamed(employer) || joined.get(employer)?.includes(employer));
  return own.map((employer) => [...new Set([employer, ...(joined.get(employer) ?? [])])].flat());
}

/**
 * Who says it. A practice location was written down once, with its telephone and its address; and an organization at the
 * address from which a group is billed for is mostly that group.
 */
const WITNESS: Readonly<Partial<Record<Source, Source>>> = {
  same_suite: 'same_phone',
  same_address: 'same_phone',
  elsewhere: 'clinician_group',
};

/** As vendors are told of an employer. Different witnesses add up as if each were independent of the others. */
function describe(
  employer: Employer,
  all: readonly Employer[],
  known: ReadonlyMap<string, string>,
): Organization {
  const weighed = employer
    .map(({ source, question }) => ({
      source,
      confidence: CONFIDENCE[source] * shareOf(employer, question, all),
    }))
    .toSorted((one, other) => other.confidence - one.confidence);
  const [strongest] = weighed;
  const witnesses = Map.groupBy(weighed, ({ source }) => WITNESS[source] ?? source).values();
  const doubt = [...witnesses].reduce((product, [best]) => product * (1 - (best?.confidence ?? 0)), 1);
  const name = mostFrequent(employer.flatMap(({ names }) => names.slice(0, 1)));
  const operators = new Set(known.values());
  const telling = (domain: string, of: Source) =>
    (operators.has(domain) ? 2 : 0) + (name !== null && resembles(domain, name) ? 1 : 0) + CONFIDENCE[of];
  const [best] = employer
    .flatMap(({ source, domains }) => domains.map((domain) => ({ domain, telling: telling(domain, source) })))
    .toSorted((one, other) => other.telling - one.telling);
  return {
    source: strongest?.source ?? 'elsewhere',
    name,
    domain: best?.domain ?? null,
    confidence: Math.round((1 - doubt) * 100) / 100,
  };
}

/** How much of a question's confidence an employer has: by how much names it there. */
function shareOf(employer: Employer, question: string, all: readonly Employer[]): number {
  const weightOf = (one: Employer) =>
    one.filter((piece) => piece.question === question).reduce((sum, { weight }) => sum + weight, 0);
  const weights = all.map(weightOf).filter((weight) => weight > 0);
  if (weights.length > DIFFERENT_AT_MOST && weightOf(employer) < NAMESAKE) return 0;
  return weightOf(employer) / weights.reduce((sum, weight) => sum + weight, 0);
}

function namesIn(texts: readonly (string | null)[]): string[] {
  return texts.map(organizationName).filter((name) => name !== null);
}

function nameKeys(texts: readonly (string | null)[]): string[] {
  const keys = texts.map((text) => (organizationName(text) === null ? '' : organizationKey(text ?? '')));
  return keys.filter((key) => key !== '').map((key) => `name:${key}`);
}

/** The value met most often, of several the one met first. */
function mostFrequent(values: readonly string[]): string | null {
  const grouped = [...Map.groupBy(values, (value) => value)];
  return grouped.toSorted(([, one], [, other]) => other.length - one.length)[0]?.[0] ?? null;
}

/** The addresses among endpoints that ordinary mail may reach, normalized, each once, in the order of the endpoints. */
export function ordinaryAddresses(endpoints: readonly EndpointFact[]): Address[] {
  const addresses = endpoints
    .filter(({ kind, endpoint }) => classifyEndpoint(kind, endpoint) === 'email')
    .map(({ endpoint }) => parseAddress(endpoint.trim().replace(/^mailto:/i, '')))
    .filter((address) => address !== null);
  return [...new Map(addresses.map((address) => [address.email, address])).values()];
}

const NOT_EMPLOYERS = readDomains(new URL('./not-employers.txt', import.meta.url));

/**
 * Whether an employer may have this domain: it is no free mail, serves no Direct messages to others, and belongs to none of
 * those in not-employers.txt, where an address says what software is used, not who is worked for.
 * @param domain registrable
 */
export function isEmployerDomain(domain: string): boolean {
  return classify(domain, null) !== 'personal' && !isDirect(domain) && !holdsDomain(NOT_EMPLOYERS, domain);
}

/**
 * The registrable domains of addresses and URLs that an employer may have, one for each endpoint. The parent of a host for
 * Direct messages is the employer's own: `direct.clinic.org`.
 */
function domainsOf(endpoints: readonly EndpointFact[]): string[] {
  return endpoints
    .map(hostOf)
    .map((host) => (classify(host, null) === 'personal' ? null : registrableDomain(host)))
    .filter((domain) => domain !== null)
    .filter(isEmployerDomain);
}

function hostOf({ kind, endpoint }: EndpointFact): string {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const domain = parseAddress(text)?.domain ?? '';
  const found = classifyEndpoint(kind, endpoint);
  switch (found) {
    case 'email':
      return domain;
    case 'direct':
      // Any other host for Direct messages may be one that serves many.
      return domain.startsWith('direct.') ? domain : '';
    case 'url':
      return URL.parse(text.includes('://') ? text : `https://${text}`)?.hostname ?? '';
    case 'junk':
      return '';
    default:
      return found satisfies never;
  }
}
