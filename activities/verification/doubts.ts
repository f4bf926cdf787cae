import { isEmployerDomain } from '../person/employer-domains.ts';
import { resembles } from '../person/organization-name.ts';
import { registrableDomain } from './domains.ts';
import { isEmployers, isOpenToAnyone, isTrade, readNamedDomain } from './email-type.ts';
import type { Owner, Whose } from './local-part.ts';
import { OwnNames } from './own-names.ts';
import { testimonyOf } from './patterns.ts';
import type { NamedCandidate } from './policy.ts';
import type { Address } from './syntax.ts';

// Decides which addresses a second source must name. One source is enough if the local part shows the
// person, or if the source must know the person by its own data. It is not enough for an address that
// a stranger may have, because vendors mix people up.

const PROFILE = 'vendor_profile';

interface Context {
  readonly candidate: Pick<
    NamedCandidate,
    'namedBy' | 'repeatsInput' | 'validatedAt' | 'begunAt'
  >;
  readonly owner: Exclude<Owner, 'other_person' | 'shared'>;
  readonly address: Address;
  /** The registrable part of the address's domain. */
  readonly registrable: string;
  readonly whose: Whose;
  readonly own: OwnNames;
}

/**
 * The doubts, in order. Each is a reason why one source is not enough. All but the last apply even to
 * an address with the person's names.
 */
const DOUBTS: readonly ((context: Context) => boolean)[] = [
  hasDoubtfulName,
  isAtOthersDomain,
  isOldElsewhere,
  isAgainstPattern,
  isUnknownAtWork,
];

/**
 * Returns true if nothing shows that an address belongs to the person, and no second source names it.
 * A source that derives addresses from our request doesn't know the person, so an unclear address from
 * such sources only is always doubtful.
 */
export function isOwnerDoubtful(
  owner: Context['owner'],
  candidate: Context['candidate'],
  address: Address,
  whose: Whose,
): boolean {
  if (owner === 'unclear' && candidate.repeatsInput) return true;
  if (candidate.namedBy > 1) return false;
  const registrable = registrableDomain(address.domain) ?? address.domain;
  const own = new OwnNames(whose.person);
  const context = { candidate, owner, address, registrable, whose, own };
  return DOUBTS.some((doubts) => doubts(context));
}

/** `hblackwoodquilts@gmail.com`, `john.m.hartley` of John Q. Hartley: perhaps a namesake. */
function hasDoubtfulName({ owner }: Context): boolean {
  return owner === 'doubtful';
}

/**
 * `jane.hartley@doximity.com`, `jhartley@hartleyroofing.com`, `jhartley@medbillingpros.com`: people
 * there are customers, namesakes, or suppliers of the person.
 */
function isAtOthersDomain({ address, registrable, whose, own }: Context): boolean {
  const { domain } = address;
  const { person, organization } = whose;
  if (person === null || isOpenToAnyone(domain)) return false;
  // A vendor's profile can name a portal as the employer, and would then confirm itself.
  const isConfirmed =
    organization?.source !== PROFILE && isEmployers(domain, organization);
  if (isConfirmed) return false;
  const name = organization?.name ?? null;
  if (!isEmployerDomain(registrable) || isTrade(domain, name)) {
    return true;
  }
  return !resembles(registrable, name) && readNamedDomain(domain, own) === 'business';
}

const YEAR_MS = 365 * 86_400_000;

/**
 * Returns true for an address at another employer that the source last saw over a year ago. The person
 * may have left.
 */
function isOldElsewhere(context: Context): boolean {
  const { validatedAt, begunAt } = context.candidate;
  const isOld = validatedAt !== null && begunAt - validatedAt.getTime() > YEAR_MS;
  return isOld && isElsewhere(context);
}

/**
 * Returns true for a domain that has nothing to do with the likeliest employer. If we don't know the
 * employer's domain, the address may be there.
 */
function isElsewhere({ address, registrable, whose }: Context): boolean {
  const { domain } = address;
  const { organization } = whose;
  if (organization === null || organization.domain === null) {
    return false;
  }
  if (isOpenToAnyone(domain) || isEmployers(domain, organization)) {
    return false;
  }
  return !resembles(registrable, organization.name);
}

/** `jhartley` where the colleagues have `first.last` is often a relative's or a colleague's. */
function isAgainstPattern({ owner, address, whose }: Context): boolean {
  return owner === 'person' && testimonyAt(address, whose) === 'against';
}

/**
 * `sunnyday77@hospital.org`: often a department or a colleague. It may be the person's at free mail,
 * at a domain with both of their names, or if the local part is an employee number. This does not
 * apply if NPPES does not have the person, because the source's response then contained the NPI.
 */
function isUnknownAtWork(context: Context): boolean {
  const { owner, address, registrable, whose, own } = context;
  const { local, domain } = address;
  if (owner !== 'unclear' || whose.person === null) return false;
  if (isOpenToAnyone(domain)) return false;
  if (isEmployeeNumber(local, own) || testimonyAt(address, whose) === 'for') {
    return false;
  }
  const [label = ''] = registrable.split('.');
  return !own.areBothNames(label.replaceAll('-', ''));
}

function testimonyAt({ local, domain }: Address, { person, patterns }: Whose) {
  const pattern = patterns.find((one) => one.domain === domain);
  return pattern === undefined ? null : testimonyOf(local, pattern, person);
}

/**
 * Returns true for `1042388`, for `u0918273` with a letter for the kind of staff, and for `kls4417` of
 * Karen L. Smith. Other letters are a colleague's, and a longer number is a telephone number.
 */
function isEmployeeNumber(local: string, own: OwnNames): boolean {
  const letters = /^([a-z]{0,3})[0-9]{4,9}$/.exec(local)?.[1];
  return letters !== undefined && (letters.length < 2 || own.areInitials(letters));
}
