import type { WantedType } from '../words.ts';

/**
 * Credits per email found (api/README.md, Credits). A submit writes the price on each request's row, and everything
 * after it goes by that row: a new price here changes no past request.
 */
export const PRICES: Readonly<Record<WantedType, number>> = { any: 1, professional: 1, personal: 3 };
