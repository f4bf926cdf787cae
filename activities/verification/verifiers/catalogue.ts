import { createHunterVerifier, HUNTER_VERIFIER } from './hunter.ts';
import { createNeverBounce, NEVERBOUNCE } from './neverbounce.ts';
import { createReacher, REACHER } from './reacher.ts';
import { createZeroBounce, ZEROBOUNCE } from './zerobounce.ts';

/** Every verifier, in the order in which they are asked if the configuration names no other. */
export const VERIFIERS = {
  reacher: { ...REACHER, create: createReacher },
  zerobounce: { ...ZEROBOUNCE, create: createZeroBounce },
  neverbounce: { ...NEVERBOUNCE, create: createNeverBounce },
  'hunter-verifier': { ...HUNTER_VERIFIER, create: createHunterVerifier },
} as const;

export type VerifierId = keyof typeof VERIFIERS;
export const VERIFIER_IDS = Object.keys(VERIFIERS) as VerifierId[];
