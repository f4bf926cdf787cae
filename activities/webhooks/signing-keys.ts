import { createHash, createPrivateKey, createPublicKey, hkdfSync, type KeyObject } from 'node:crypto';

/**
 * A public key in the two forms that receivers' libraries take: a JSON Web Key (RFC 8037, ed25519) and, as one more
 * member of it, `whpk_` + base64 (Standard Webhooks 1.0, "Signature scheme").
 */
export interface PublicKey {
  readonly kty: 'OKP';
  readonly crv: 'Ed25519';
  readonly use: 'sig';
  /** The key's RFC 7638 thumbprint. */
  readonly kid: string;
  /** The 32 bytes of the key, base64url. */
  readonly x: string;
  readonly whpk: string;
}

/** The 32 bytes that follow are an ed25519 seed: PKCS #8 with the object identifier of RFC 8410. */
const PKCS8_HEAD = Buffer.from('302e020100300506032b657004220420', 'hex');

/**
 * Makes the function that gives an organization's private ed25519 keys, one per master key. Each organization has keys
 * of its own, because with a common one a delivery to one customer, sent on to another's receiver, would be accepted
 * there (Standard Webhooks 1.0, "Additional considerations"). They are derived (HKDF-SHA256, RFC 5869) and stored
 * nowhere: a copy of the database signs no `v1a`.
 * @param masters 32 random bytes each, the current one first; none: no organization has a key
 */
export function createSigningKeys(masters: readonly Buffer[]): (organizationId: string) => KeyObject[] {
  return (organizationId) => masters.map((master) => signingKey(master, organizationId));
}

/** The public half of a private ed25519 key. */
export function publicKey(key: KeyObject): PublicKey {
  const { x = '' } = createPublicKey(key).export({ format: 'jwk' });
  // The members and their order are RFC 7638's.
  const kid = createHash('sha256').update(`{"crv":"Ed25519","kty":"OKP","x":"${x}"}`).digest('base64url');
  const whpk = `whpk_${Buffer.from(x, 'base64url').toString('base64')}`;
  return { kty: 'OKP', crv: 'Ed25519', use: 'sig', kid, x, whpk };
}

// Another info or salt is another key for every organization: receivers would refuse all that is signed with it.
function signingKey(master: Buffer, organizationId: string): KeyObject {
  const seed = hkdfSync('sha256', master, '', `npi-email-enrichment webhook ed25519 ${organizationId}`, 32);
  return createPrivateKey({
    key: Buffer.concat([PKCS8_HEAD, Buffer.from(seed)]),
    format: 'der',
    type: 'pkcs8',
  });
}
