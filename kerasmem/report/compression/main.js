// The compression page has tables only.

startPage(() => {});
